"""The agent as process 1 of a Xen guest: its initramfs, vchan, disk, containers on cgroup v2."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from protect.channel.link import Link
from protect.model.toolstack import (
    DiskSpec,
    DomainId,
    DomainSpec,
    Mode,
    ShutdownReason,
)
from protect.model.transport import Transport
from protect.model.zone import domain_name
from protect.toolstack.libxl.settings import LibxlSettings
from protect.toolstack.libxl.toolstack import LibxlToolstack
from tests.support.agent.link_owner import LIST, Collector, Owner
from tests.support.agent.zone import BUILD
from tests.support.agent.zone_image import busybox_squashfs
from tests.support.agent.zone_specs import creation, process_json
from tests.support.waiting import until
from tests.xen import machine
from tests.xen.inside.conftest import MIB
from xenpod_proto.channel.v1 import channel_pb2 as pb

PATIENCE = 300.0


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return busybox_squashfs(tmp_path_factory.mktemp("image"))


@pytest.fixture
async def zones(kernels: Path) -> AsyncIterator[LibxlToolstack]:
    """A toolstack whose domains boot the real agent."""
    kernel = machine.zone_kernel()
    version = kernel.name.removeprefix("vmlinuz-")
    settings = LibxlSettings(kernel=kernel, initramfs=BUILD / f"initramfs-{version}.cpio")
    toolstack = LibxlToolstack(kernels, Path("/nonexistent"), settings)
    await toolstack.start()
    before = {info.id for info in await toolstack.list()}
    yield toolstack
    for info in await toolstack.list():
        if info.id not in before:
            await toolstack.destroy(info.id)
    await toolstack.close()


class Dialled:
    """Connects, and keeps the last connection for a later cut."""

    def __init__(self, toolstack: LibxlToolstack, domain: DomainId) -> None:
        self._toolstack = toolstack
        self._domain = domain
        self.transport: Transport | None = None

    async def __call__(self) -> Transport:
        self.transport = await self._toolstack.open_channel(self._domain)
        return self.transport


async def _exit_code(link: Link, name: str, exec_id: str = "") -> pb.ProcessExited:
    exited: list[pb.ProcessExited] = []

    async def ended() -> bool:
        for process in (await link.call(LIST, PATIENCE)).processes.processes:
            of = (process.process.container_id, process.process.exec_id)
            if of == (name, exec_id) and process.state == pb.PROCESS_STATE_EXITED:
                exited.append(process.exited)
        return bool(exited)

    await until(ended, PATIENCE)
    return exited[0]


async def _start(link: Link, name: str, *args: str, memory: int = 0) -> Collector:
    return await _begin(link, creation(name, *args, memory=memory))


async def _begin(link: Link, container: pb.CreateContainer) -> Collector:
    created = (await link.call(pb.Request(create_container=container), PATIENCE)).created
    collector = Collector()
    link.output(created.stdout_stream, collector)
    link.drop_output(created.stderr_stream)
    await link.call(pb.Request(start_container=pb.StartContainer(id=container.id)), PATIENCE)
    return collector


async def _finished(collector: Collector) -> bytes:
    async with asyncio.timeout(PATIENCE):
        await collector.finished.wait()
    return bytes(collector.data)


@pytest.mark.parametrize("mode", Mode)
async def test_agent_serves_every_request_until_power_off(
    zones: LibxlToolstack, image: Path, mode: Mode
) -> None:
    uuid = uuid4()
    environment = {"XENPOD_ZONE": "z1", "XENPOD_CHANNEL": "vchan"}
    spec = DomainSpec(uuid, domain_name("agent", uuid), 160 * MIB, 1, mode, 1, environment)
    domain = await zones.create(spec)
    await zones.attach_disk(domain, DiskSpec("xvda", image))
    await zones.unpause(domain)
    dial = Dialled(zones, domain)
    owner = Owner()
    link = Link("z1", dial, owner)
    try:
        hello = await link.open(PATIENCE)
        assert hello.hypervisor_type == "xen"
        await _check_zone(link)
        await _check_containers(link)
        await _check_files(link)
        await _check_reconnection(link, dial, owner)
        deaths = aiter(zones.deaths())
        await link.call(pb.Request(power_off=pb.PowerOff()), PATIENCE)
        death = await asyncio.wait_for(anext(deaths), PATIENCE)
        assert (death.uuid, death.reason) == (uuid, ShutdownReason.POWEROFF)
        assert not owner.violations
    except BaseException:
        print((await zones.console(domain, 8192)).decode(errors="replace"))  # noqa: T201
        raise
    finally:
        await link.close()


async def _check_files(link: Link) -> None:
    """A new version replaces a version that a container has mounted."""
    source = "/run/xenpod/containers/files/volumes/0"
    mount = {"destination": "/v", "type": "bind", "source": source, "options": ["rbind", "ro"]}
    script = 'cat /v/a; until [ "$(cat /v/a)" = two ]; do :; done; cat /v/a'
    request = creation("files", "sh", "-c", script, mounts=[mount])
    request.file_volumes.add(name="0", volume="settings")
    for number, text in enumerate((b"one", b"two")):
        top = f"..{number}"
        entries = [
            pb.FileEntry(type=pb.FILE_TYPE_DIRECTORY, mode=0o755),
            pb.FileEntry(path=top, type=pb.FILE_TYPE_DIRECTORY, mode=0o755),
            pb.FileEntry(path=f"{top}/a", type=pb.FILE_TYPE_REGULAR, mode=0o444, content=text),
            pb.FileEntry(path="..data", type=pb.FILE_TYPE_SYMLINK, content=top.encode()),
            pb.FileEntry(path="a", type=pb.FILE_TYPE_SYMLINK, content=b"..data/a"),
        ]
        put = pb.PutFiles(
            volume="settings",
            version=f"v{number}",
            first=True,
            last=True,
            size_bytes=MIB,
            entries=entries,
            keep=[top, "..data", "a"],
        )
        await link.call(pb.Request(put_files=put), PATIENCE)
        if not number:
            collector = await _begin(link, request)
            await until(lambda collector=collector: bytes(collector.data) == b"one", PATIENCE)
    assert await _finished(collector) == b"onetwo"


async def _check_zone(link: Link) -> None:
    facts = (await link.call(pb.Request(get_facts=pb.GetFacts()), PATIENCE)).facts
    assert (facts.hypervisor_type, facts.pid1, facts.cgroup, facts.hostname) == ("xen", "init", "v2", "z1")
    network = pb.ConfigureNetwork(
        index=0,
        name="eth0",
        mac=bytes.fromhex("02005e000102"),
        mtu=1400,
        addresses=["192.0.2.5/24"],
        routes=[pb.Route(destination="0.0.0.0/0", gateway="192.0.2.1")],
    )
    await link.call(pb.Request(configure_network=network), PATIENCE)
    stats = (await link.call(pb.Request(get_stats=pb.GetStats()), PATIENCE)).stats
    assert 0 < stats.zone.agent_rss_bytes <= 2 * MIB
    assert [interface.name for interface in stats.zone.interfaces] == ["eth0"]


async def _check_containers(link: Link) -> None:
    shown = await _start(link, "c1", "sh", "-c", "cat /etc/resolv.conf; ip addr show eth0; exit 7")
    text = (await _finished(shown)).decode()
    assert text.startswith("nameserver 192.0.2.53") and "192.0.2.5/24" in text and "mtu 1400" in text
    assert (await _exit_code(link, "c1")).exit_code == 7
    hog = await _start(link, "c2", "sh", "-c", "tail /dev/zero", memory=24 * MIB)
    exited = await _exit_code(link, "c2")
    assert exited.oom_killed
    await _finished(hog)
    await _start(link, "c3", "sleep", "1000")
    exec_request = pb.ExecProcess(
        process=pb.ProcessRef(container_id="c3", exec_id="e1"),
        process_json=json.dumps(process_json("sh", "-c", "exit 5")).encode(),
    )
    await link.call(pb.Request(exec_process=exec_request), PATIENCE)
    assert (await _exit_code(link, "c3", "e1")).exit_code == 5
    stats = (await link.call(pb.Request(get_stats=pb.GetStats(container_ids=["c3"])), PATIENCE)).stats
    assert stats.containers[0].pids_current >= 1 and stats.containers[0].memory_usage_bytes > 0
    for name in ("c1", "c2", "c3"):
        await link.call(pb.Request(delete_container=pb.DeleteContainer(id=name)), PATIENCE)
    assert not (await link.call(LIST, PATIENCE)).processes.processes


async def _check_reconnection(link: Link, dial: Dialled, owner: Owner) -> None:
    lines = 40_000
    collector = await _start(link, "c4", "seq", "1", str(lines))
    before = len(owner.hellos)
    async with asyncio.timeout(PATIENCE):
        while len(collector.data) < 60_000:
            collector.changed.clear()
            await collector.changed.wait()
    assert dial.transport is not None
    await dial.transport.close()
    assert await _finished(collector) == b"".join(b"%d\n" % n for n in range(1, lines + 1))
    assert len(owner.hellos) > before and not owner.hellos[-1][1]
