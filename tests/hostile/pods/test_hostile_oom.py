"""The OOM killer does not spare programs of the daemons; each has a control group of its own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from daemonkit.host import children
from tests.support.cri.cri_daemons import CNI_BIN, CriNode, needs_node, pulled
from tests.support.protect.silent_server import SilentServer
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]
PATIENCE = 20.0

HELD = """#!/bin/sh
# It tells of itself and of a child that it has at once, and waits; then it becomes the program.
sleep 1000 & child=$!
echo $$ $child > {held}.new && mv {held}.new {held}.$$
flock --shared {held}.lock true
kill $child
exec {program} "$@"
"""
BECOME = 'echo $$ > "$0"/cgroup.procs && { echo -999 > /proc/self/oom_score_adj; } 2>&-; exec "$@"'
"""In a group, and spared as in packaging/systemd, if permitted."""


class Held:
    """Programs that wait before their work, for inspection."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self._locks: dict[str, int] = {}

    def hold(self, name: str, program: str, place: Path) -> None:
        """Put a script at ``place``; the script becomes ``program`` once released."""
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(HELD.format(held=self.folder / name, program=program))
        place.chmod(0o755)
        self._locks[name] = os.open(self.folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(self._locks[name], fcntl.LOCK_EX)

    async def pids(self, name: str) -> list[int]:
        """The pids of the first program and of its child."""
        await until(lambda: any(self.folder.glob(f"{name}.[0-9]*")))
        found = next(self.folder.glob(f"{name}.[0-9]*"))
        return [int(pid) for pid in found.read_text().split()]

    def let_go(self, name: str) -> None:
        """Let all of them go on from now on; may be repeated."""
        if (lock := self._locks.pop(name, None)) is not None:
            os.close(lock)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    held = Held(tmp_path / "held")
    plugin = CNI_BIN / "bridge"
    held.hold("bridge", str(plugin), held.folder / "bin/bridge")
    held.hold("verifier", "true", held.folder / "verifiers/verifier")
    yield held
    for name in ("bridge", "verifier"):
        held.let_go(name)


@pytest.fixture
def group() -> Iterator[Path]:
    """A delegated control group, as from systemd."""
    top = next(
        at
        for at in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
        if (at / "cgroup.procs").exists()
    )
    made = top / f"xenpod-test-{os.getpid()}"
    made.mkdir()
    os.setxattr(made, "trusted.delegate", b"1")
    yield made
    for each in (made / "children", made):
        if each.exists():
            each.rmdir()


@pytest.fixture
async def node(tmp_path: Path, group: Path, held: Held) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    for daemon in (made.daemon, made.protectd.daemon):
        daemon.launcher = ("/bin/sh", "-c", BECOME, str(group))
        daemon.environment = {"PATH": f"{held.programs}:{os.environ['PATH']}"}
    made.configure(
        cni={
            "conf_dir": str(made.conf_dir),
            "netns_dir": str(made.netns_dir),
            "bin_dirs": [str(held.programs), str(CNI_BIN)],
        },
        images={"certs_dir": str(made.certs), "policy": {"verifier_dir": str(held.folder / "verifiers")}},
    )
    await made.start()
    yield made
    for name in ("bridge", "verifier"):
        held.let_go(name)
    await made.close()


def _score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def _apart(pid: int) -> bool:
    return _score(pid) >= children.SCORE


def _in(pid: int, group: str) -> bool:
    return f"/{group}\n" in Path(f"/proc/{pid}/cgroup").read_text()


async def _ordinary(pids: list[int], group: Path) -> None:
    for pid in pids:
        await until(partial(_apart, pid), PATIENCE)
        await until(partial(_in, pid, f"{group.name}/children"), PATIENCE)


async def test_programs_of_images_and_networks(
    node: CriNode, held: Held, group: Path, tmp_path: Path
) -> None:
    """With their own children, started before the daemon could act."""
    pulling = asyncio.create_task(_pull(node, tmp_path / "registry"))
    await _ordinary(await held.pids("verifier"), group)
    held.let_go("verifier")
    await pulling
    assert node.daemon.process is not None
    # Workers and tar2sqfs inherit the score and the group of their parents.
    below = _below(node.daemon.process.pid)
    parents = [pid for pid in below if b"images.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(parents) == 2
    await _ordinary(parents, group)
    async with node.client() as client:
        running = asyncio.create_task(client.run_pod("a"))
        await _ordinary(await held.pids("bridge"), group)
        held.let_go("bridge")
        await running
    for daemon in (node.daemon, node.protectd.daemon):
        assert daemon.process is not None
        pid = daemon.process.pid
        assert _score(pid) <= 0 and _in(pid, group.name)


async def _pull(node: CriNode, store: Path) -> None:
    async with pulled(node, store):
        pass


async def test_processes_of_zones_and_lookups_have_the_oom_score_of_children(
    node: CriNode, held: Held, group: Path, tmp_path: Path
) -> None:
    for name in ("bridge", "verifier"):
        held.let_go(name)
    async with pulled(node, tmp_path / "registry") as image, node.client() as client:
        pod = await client.run_pod("a")
        container = await client.create(pod, image, ["sleep", "1000"])
        await client.start(container)
        # The first process of the zone, its watcher, and all processes inside.
        first = next((node.protectd.run_dir / "fake/domains").glob("*/pid"))
        monitor = _parent(int(first.read_text().split()[0]))
        zone = [monitor, *_below(monitor)]
        assert len(zone) >= 3
        assert {pid: _score(pid) for pid in zone} == dict.fromkeys(zone, children.SCORE)
        with SilentServer(tmp_path / "silent") as silent:
            mount = cri.Mount(host_path=str(silent.path / "x"), container_path="/x")
            creating = asyncio.create_task(client.create(pod, image, ["true"], "other", [mount]))
            await until(lambda: silent.asked > 0)
            protectd = node.protectd.daemon.process
            assert protectd is not None
            looking = [pid for pid in _below(protectd.pid) if _name(pid) == "lookup"]
            assert looking
            await _ordinary(looking, group)
            silent.abort()
            await asyncio.wait([creating])
            assert creating.exception() is not None


def _parent(pid: int) -> int:
    return int(re.search(r"^PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)[1])  # type: ignore[index]


def _below(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from _below(child)


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
