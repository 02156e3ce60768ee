"""/dev: the usual for a container, and all that the zone has for a privileged one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio

from localnode import images, layers, registry
from localnode.client import Pod
from localnode.images import PushedImage
from localnode.layers import LayerEntry
from tests.support.cri.conformance import PATIENCE, Stage, linux
from tests.support.cri.cri_daemons import needs_node
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]

NAME = "devices.test/disk:1"
MISC = {"fuse": "fuse", "tun": "net/tun", "loop-control": "loop-control", "kvm": "kvm"}
"""Names in /proc/misc, and below /dev."""
USUAL = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}


@pytest_asyncio.fixture(loop_scope="session")
async def another(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that no zone has a disk of."""
    async with registry.serve(tmp_path_factory.mktemp("devices")) as address:
        layer = layers.layer(LayerEntry("only", 0o644, b"here"))
        images.push(address, NAME.partition("/")[2], PushedImage([layer], {}))
        registry.mirror(stage.node.certs, NAME.partition("/")[0], address)
        return await stage.client.pull(NAME)


async def devices(stage: Stage, container: str) -> set[str]:
    """The paths of the device nodes that it sees, terminals left out."""
    found = await stage.output(container, "find /dev -type b -o -type c")
    return {path for path in found.split() if not path.startswith(("/dev/pts/", "/dev/console", "/dev/ptmx"))}


async def test_a_container_has_the_usual_devices(stage: Stage, shared_pod: Pod) -> None:
    assert await devices(stage, await stage.started(shared_pod)) == USUAL


async def test_a_privileged_one_has_those_of_its_zone(stage: Stage, shared_pod: Pod) -> None:
    container = await stage.started(shared_pod, linux=linux(privileged=True))
    found = await devices(stage, container)
    assert found >= USUAL
    listed = [line.split() for line in (await stage.output(container, "cat /proc/misc")).splitlines()]
    there = {f"/dev/{MISC[name]}": f"a:{int(minor):x}" for minor, name in listed if name in MISC}
    assert "/dev/loop-control" in there and found >= set(there)
    if stage.toolstack == "libxl":
        assert {"/dev/fuse", "/dev/net/tun", "/dev/loop0"} <= found
    for path, number in there.items():
        assert await stage.output(container, f"stat -c %t:%T {path}") == number
    for path in ("/dev/fuse", "/dev/net/tun"):
        assert path not in there or await stage.output(container, f"stat -c %a {path}") == "666"
    assert await stage.output(container, "exec 3<>/dev/loop-control && echo opened") == "opened"


async def test_a_privileged_one_has_its_own_terminals_and_memory(stage: Stage, shared_pod: Pod) -> None:
    own = cri.NamespaceOption(pid=cri.CONTAINER, ipc=cri.CONTAINER)
    script = (
        "tty && echo seen >/dev/tty && readlink /dev/fd && touch /dev/shm/mine && ls /dev/mqueue && mount"
    )
    one = await stage.started(
        shared_pod, script, tty=True, linux=linux(privileged=True, namespace_options=own)
    )
    assert (await stage.ended(one)).exit_code == 0
    text = "\n".join(await stage.logged(one, "seen"))
    assert "/dev/console" in text or "/dev/pts/0" in text
    two = await stage.started(shared_pod, linux=linux(privileged=True, namespace_options=own))
    assert await stage.output(two, "ls /dev/shm /dev/pts") == "/dev/pts:\nptmx\n\n/dev/shm:"


async def test_the_kubelets_file_in_dev_is_each_containers_own(
    stage: Stage, shared_pod: Pod, tmp_path: Path
) -> None:
    """What the kubelet mounts into every container, for the message of its end."""
    for name in ("one", "two"):
        (tmp_path / name).touch()
        mount = cri.Mount(container_path="/dev/termination-log", host_path=str(tmp_path / name))
        container = await stage.started(shared_pod, linux=linux(privileged=True), mounts=[mount])
        await stage.output(container, f"echo {name} >/dev/termination-log")
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == ["one\n", "two\n"]


async def test_a_zone_keeps_no_file_of_a_loaded_module(stage: Stage, shared_pod: Pod) -> None:
    """They would stay in its memory.  What did not load is of this kernel or built in, and may stay."""
    options = cri.NamespaceOption(pid=cri.POD)
    container = await stage.started(shared_pod, linux=linux(privileged=True, namespace_options=options))
    loaded = {
        line.split()[0]
        for line in (
            await stage.output(container, "test ! -e /proc/modules || cat /proc/modules")
        ).splitlines()
    }
    files = (await stage.output(container, "ls /proc/1/root/lib/modules")).split()
    assert not loaded & {name.removesuffix(".ko").replace("-", "_") for name in files}
    if stage.toolstack == "libxl":
        assert "order" in files and {"fuse", "tun", "loop", "overlay"} <= loaded


async def test_devices_come_and_go_while_a_privileged_one_runs(
    stage: Stage, shared_pod: Pod, another: str
) -> None:
    container = await stage.started(shared_pod, linux=linux(privileged=True))
    before = await devices(stage, container)
    mount = cri.Mount(container_path="/m", image=cri.ImageSpec(image=another), readonly=True)
    other = await stage.started(shared_pod, mounts=[mount])
    (came,) = await devices(stage, container) - before
    assert await stage.output(container, f"head -c 4 {came}") == "hsqs", "a squashfs begins so"
    await stage.client.remove_container(other)
    async with asyncio.timeout(PATIENCE):
        while came in await devices(stage, container):
            pass
