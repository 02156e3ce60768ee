"""CNI with the standard plugins and with misbehaving ones, in real network namespaces."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyroute2 import AsyncIPRoute, netns

from cri.cni import netns as our_netns
from cri.cni.conf import ConfDir
from cri.cni.network import Network
from cri.cni.plugin import Plugins
from cri.state.attachment import Attachment
from cri.state.names import new_id
from daemonkit.faults import Broken, Exhausted, Fault, Refused, TooLate
from tests.support.cri.cri_node import pod_config
from tests.support.waiting import until
from tools.localnode import network as bridges
from xenpod_proto.cri.v1 import runtime_pb2 as cri

CNI_BIN = Path("/usr/lib/cni")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or not (CNI_BIN / "bridge").exists(), reason="needs root and plugins"
    ),
]


@dataclass
class Place:
    """A network of the test's own."""

    folder: Path
    bridge: bridges.Bridge
    network: Network

    @property
    def leases(self) -> list[str]:
        return [path.name for path in (self.folder / "leases").rglob("*") if path.name[0].isdigit()]

    @property
    def names(self) -> list[str]:
        folder = self.folder / "netns"
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []

    @property
    def ports(self) -> list[str]:
        return os.listdir(f"/sys/class/net/{self.bridge.name}/brif")

    def write(self, *plugins: dict[str, object], version: str = "1.0.0") -> None:
        """Replace the configuration."""
        conflist = {"cniVersion": version, "name": self.bridge.name, "plugins": plugins}
        (self.folder / "net.d" / "10-xenpod.conflist").write_text(json.dumps(conflist))

    def plugin(self, name: str, script: str) -> None:
        """A plugin of the test's own."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(stat.S_IRWXU)

    def plan(self) -> Attachment:
        return self.network.plan(new_id(), pod_config())


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    bridge = bridges.bridge_for(str(tmp_path))
    bridges.write_conflist(tmp_path / "net.d", bridge, tmp_path / "leases", masquerade=False)
    plugins = Plugins((tmp_path / "bin", CNI_BIN), 60.0)
    made = Network(ConfDir(tmp_path / "net.d"), plugins, tmp_path / "netns", tmp_path / "hold", 60.0)
    try:
        yield Place(tmp_path, bridge, made)
    finally:
        await bridges.remove_bridge(bridge)


async def test_add_and_del_with_the_standard_plugins(place: Place) -> None:
    attached = await place.network.attach(place.plan())
    assert place.leases == list(attached.addresses) and len(place.ports) == 1
    assert os.stat(attached.netns).st_ino != os.stat("/proc/self/ns/net").st_ino
    again = Attachment.from_json(attached.to_json())
    assert again == attached
    await place.network.detach(again)
    assert place.leases == [] and place.ports == [] and place.names == []
    await place.network.detach(again)  # may be repeated
    assert not any("netns" in line for line in _mounts(place.folder))


async def test_open_directory_of_namespaces_is_unmounted_with_the_last_pod(place: Place) -> None:
    """Nobody would come back for the directory: the last pod is gone."""
    plan = place.plan()
    await our_netns.create_netns(plan.netns)
    looking = os.open(plan.netns.parent, os.O_RDONLY)
    try:
        await our_netns.remove_netns(plan.netns)
        assert _mounts(place.folder) == []
    finally:
        os.close(looking)


async def test_many_attachments_at_once_have_distinct_addresses(place: Place) -> None:
    attached = await asyncio.gather(*(place.network.attach(place.plan()) for _ in range(12)))
    assert len({address for each in attached for address in each.addresses}) == 12
    await asyncio.gather(*(place.network.detach(each) for each in attached))
    assert place.leases == [] and place.ports == [] and place.names == []


async def test_del_without_add_succeeds(place: Place) -> None:
    await place.network.detach(place.plan())
    assert place.names == []


async def test_add_failing_half_way_is_undone_by_del(place: Place) -> None:
    place.plugin("broken", '[ "$CNI_COMMAND" = DEL ] && exit 0; echo "no luck" >&2; exit 7')
    first = json.loads((place.folder / "net.d" / "10-xenpod.conflist").read_text())["plugins"][0]
    place.write(first, {"type": "broken"})
    plan = place.plan()
    with pytest.raises(Broken, match="exit status 7: no luck"):
        await place.network.attach(plan)
    assert len(place.leases) == 1
    await place.network.detach(plan)
    assert place.leases == [] and place.names == []


async def test_the_conversation_with_a_chain(place: Place) -> None:
    result = {"cniVersion": "1.0.0", "ips": [{"address": "10.9.9.9/24"}], "interfaces": []}
    record = f'cat >"{place.folder}/$CNI_COMMAND.$0.json"; env >"{place.folder}/$CNI_COMMAND.env"'
    for name in ("one", "two"):
        script = record.replace("$0", name)
        place.plugin(name, f"""{script}; [ $CNI_COMMAND = DEL ] || echo '{json.dumps(result)}'""")
    place.write({"type": "one", "x": 1}, {"type": "two", "capabilities": {"portMappings": True}})
    config = pod_config(port_mappings=[cri.PortMapping(container_port=80, host_port=8080)])
    attached = await place.network.attach(place.network.plan("a" * 64, config))
    assert attached.addresses == ("10.9.9.9",)
    given = json.loads((place.folder / "ADD.one.json").read_text())
    assert given == {"cniVersion": "1.0.0", "name": place.bridge.name, "type": "one", "x": 1}
    given = json.loads((place.folder / "ADD.two.json").read_text())
    assert given["prevResult"] == result
    mapping = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}
    assert given["runtimeConfig"] == {"portMappings": [mapping]}
    assert "capabilities" not in given
    environment = (place.folder / "ADD.env").read_text()
    assert f"CNI_CONTAINERID={'a' * 64}\n" in environment and "CNI_IFNAME=eth0\n" in environment
    assert "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;" in environment
    assert f"CNI_NETNS={attached.netns}\n" in environment
    await place.network.detach(attached)
    given = json.loads((place.folder / "DEL.two.json").read_text())
    assert given["prevResult"] == result and "runtimeConfig" in given


ANSWERS = [
    ('echo \'{"cniVersion":"1.0.0","code":11,"msg":"busy"}\'; exit 1', Fault, "busy"),
    (
        'echo \'{"cniVersion":"1.0.0","code":7,"msg":"bad conf","details":"x"}\'; exit 1',
        Refused,
        "bad conf: x",
    ),
    (
        'echo \'{"code":100,"msg":"failed to allocate: no IP addresses available in range"}\'; exit 1',
        Exhausted,
        "no IP",
    ),
    ("echo not json", Broken, "not JSON"),
    ("echo '[]'", Broken, "not a JSON object"),
    ("echo '{}'", Broken, "no address"),
    ('echo \'{"ips":[{"address":"nonsense"}]}\'', Broken, "nonsense"),
    ('echo \'{"ips":[{"address":"10.0.0.1/8","interface":5}],"interfaces":[]}\'', Broken, "does not exist"),
    ("kill -9 $$", Broken, "no output"),
    ("head -c 3000000 /dev/zero", Broken, "not JSON"),
]


@pytest.mark.parametrize(("answer", "kind", "words"), ANSWERS)
async def test_invalid_answer_of_a_plugin_is_a_fault(
    place: Place, answer: str, kind: type[Fault], words: str
) -> None:
    place.plugin("odd", f'cat >/dev/null; [ "$CNI_COMMAND" = DEL ] && exit 0\n{answer}')
    place.write({"type": "odd"})
    plan = place.plan()
    with pytest.raises(kind, match=words):
        await place.network.attach(plan)
    await place.network.detach(plan)
    assert place.names == []


async def test_plugin_with_an_unknown_format_is_a_fault(place: Place) -> None:
    place.plugin("odd", "")
    (place.folder / "bin" / "odd").write_bytes(b"neither a script nor a program")
    place.write({"type": "odd"})
    plan = place.plan()
    with pytest.raises(Broken, match="Exec format error"):
        await place.network.attach(plan)
    place.plugin("odd", "exit 0")
    await place.network.detach(plan)
    (place.folder / "hold").rmdir()
    (place.folder / "hold").write_text("in the way")
    with pytest.raises(Broken, match="hold"):
        await place.network.attach(plan)


async def test_a_full_disk_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.plugin("odd", "exit 0")
    place.write({"type": "odd"})

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the lock")

    monkeypatch.setattr("cri.cni.network.os.open", full)
    with pytest.raises(Exhausted, match="the lock: No space left on device .free some space"):
        await place.network.attach(place.plan())


async def test_hanging_plugin_is_killed_with_its_children(place: Place) -> None:
    place.plugin(
        "slow", f'[ "$CNI_COMMAND" = DEL ] && exit 0\nsleep 1000 & echo $! >{place.folder}/child; wait'
    )
    place.write({"type": "slow"})
    child = place.folder / "child"
    for seconds in (0.5, 5.0, 50.0):  # until the plugin has a child
        plugins = Plugins((place.folder / "bin",), seconds)
        conf = ConfDir(place.folder / "net.d")
        network = Network(conf, plugins, place.folder / "netns", place.folder / "hold", 60.0)
        plan = network.plan(new_id(), pod_config())
        with pytest.raises(TooLate):
            await network.attach(plan)
        await place.network.detach(plan)
        if child.exists() and child.read_text().endswith("\n"):
            break
    await until(lambda: _ended(int(child.read_text())))


async def test_a_cancelled_add_lets_its_plugin_end_and_leaves_no_namespace_behind(place: Place) -> None:
    """Killed in the middle, the plugin might leave objects that no DEL finds."""
    place.plugin(
        "slow",
        f"""[ "$CNI_COMMAND" = DEL ] && exit 0
cd {place.folder}; echo $$ >pid; while [ ! -e go ]; do sleep 0.05; done; echo >done""",
    )
    place.write({"type": "slow"})
    plan = place.plan()
    task = asyncio.create_task(place.network.attach(plan))
    pid = place.folder / "pid"
    await until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    task.cancel()
    await asyncio.wait([task], timeout=0.2)
    assert not task.done() and not _ended(int(pid.read_text()))
    (place.folder / "go").touch()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (place.folder / "done").exists()
    await place.network.detach(plan)
    assert place.names == []


async def test_detach_waits_for_plugins_of_a_dead_daemon(place: Place) -> None:
    plan = place.plan()
    hold = place.folder / "hold" / f"{plan.container_id}.lock"
    hold.parent.mkdir()
    # The dead daemon's plugin: it holds the lock's descriptor, and lives for a while.
    orphan = await asyncio.create_subprocess_exec(
        "flock",
        "-x",
        str(hold),
        "sh",
        "-c",
        f"echo >{place.folder}/held; sleep 0.5; echo >{place.folder}/done",
    )
    await until(lambda: (place.folder / "held").exists())
    await place.network.detach(plan)
    assert (place.folder / "done").exists()
    await orphan.wait()


async def test_del_calls_every_plugin_and_keeps_the_failed_plugin(place: Place) -> None:
    place.plugin(
        "first",
        f'cat >/dev/null; echo >>{place.folder}/first; echo \'{{"ips":[{{"address":"10.0.0.1/8"}}]}}\'',
    )
    place.plugin("last", "cat >/dev/null; exit 3")
    place.write({"type": "first"}, {"type": "last"})
    plan = place.plan()
    await our_netns.create_netns(plan.netns)
    with pytest.raises(Broken):
        await place.network.detach(plan)
    assert (place.folder / "first").read_text() == "\n" and place.names == [plan.netns.name]
    place.plugin("last", "cat >/dev/null")
    await place.network.detach(plan)
    assert place.names == []


async def test_the_namespace_is_usable_by_others(place: Place) -> None:
    attached = await place.network.attach(place.plan())
    try:
        async with AsyncIPRoute(netns=str(attached.netns)) as inside:
            names = [link.get("ifname") async for link in await inside.link("dump")]
        assert sorted(names) == ["eth0", "lo"]
        assert attached.netns.name in netns.listnetns(str(attached.netns.parent))
    finally:
        await place.network.detach(attached)


async def test_pod_of_before_a_reboot_is_deleted(place: Place) -> None:
    attached = await place.network.attach(place.plan())
    await our_netns.remove_netns(
        attached.netns
    )  # as a reboot: the name is gone, the lease on the disk is not
    assert place.leases != []
    await place.network.detach(attached)
    assert place.leases == []


def _mounts(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(folder) in line]


def _ended(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
