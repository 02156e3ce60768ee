"""Fake zones for tests: built parts, an image on a loop device, cgroups, everything taken away again."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protect.volumes.area import Area
from tests.support.agent.zone import BUILD, ZONE, Zone, attached
from tests.support.agent.zone_client import Client
from tests.support.agent.zone_image import busybox_squashfs


def _make(folder: Path, *targets: str) -> None:
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(["make", "-s", "-C", str(folder), *targets], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def parts() -> Path:
    """The build directory, up to date."""
    for tool in ("protoc-c", "crun", "mksquashfs"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    _make(ZONE, "all", "sanitized", "check-tools")
    _make(ZONE.parent / "hostc", "all", "check-tools")
    return BUILD


@pytest.fixture(scope="session", params=["small", "sanitized"])
def root(request: pytest.FixtureRequest, parts: Path) -> Path:
    """The zone's tree with the shipped agent, and with the self-checking agent."""
    return parts / "root" if request.param == "small" else parts / "sanitized" / "root"


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A squashfs file with busybox."""
    return busybox_squashfs(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def disk(image: Path) -> Iterator[Path]:
    """The image as a block device."""
    with attached(image) as device:
        yield device


def _hierarchies() -> list[Path]:
    """The host's mounted cgroup trees with controllers: all of v1, or the tree of v2.

    Other tests mount temporary trees elsewhere, which do not count.
    """
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind = line.split()[:3]
        if not Path(point).is_relative_to("/sys/fs/cgroup"):
            continue
        if kind == "cgroup" or (
            kind == "cgroup2" and "memory" in Path(point, "cgroup.controllers").read_text()
        ):
            found.append(Path(point))
    return found


@pytest.fixture
def cgroups() -> Iterator[list[Path]]:
    """A new group in each hierarchy."""
    made = []
    for hierarchy in _hierarchies():
        group = hierarchy / f"xenpod-zone-test-{uuid.uuid4().hex[:12]}"
        group.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (group / name).exists() and (hierarchy / name).exists():
                (group / name).write_text((hierarchy / name).read_text())
        made.append(group)
    yield made
    for group in made:
        for inner in sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True):
            inner.rmdir()
        group.rmdir()


@pytest.fixture
def paused_zone(tmp_path: Path, root: Path, cgroups: list[Path]) -> Iterator[Zone]:
    """A zone whose first process waits for SIGCONT."""
    directory = tmp_path / "zone"
    directory.mkdir()
    zone = Zone(directory, root, cgroups)
    yield zone
    zone.destroy()
    console = zone.console()
    assert "ERROR: AddressSanitizer" not in console and "runtime error" not in console, console


@pytest.fixture
def zone(paused_zone: Zone, disk: Path) -> Zone:
    """A running zone with the image as xvda."""
    paused_zone.unpause()
    with_disk = paused_zone
    client = with_disk.connect()
    client.close()
    with_disk.attach("xvda", disk)
    return with_disk


@pytest.fixture
def client(zone: Zone) -> Iterator[Client]:
    """A connection after its opening."""
    connection = zone.connect()
    yield connection
    connection.close()


@pytest.fixture
def frame_check(parts: Path) -> Iterator[Callable[[str, bytes], str]]:
    """The C codec's verdict on a frame."""
    tool = subprocess.Popen(
        [str(parts / "framecheck")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert tool.stdin is not None and tool.stdout is not None
    stdin, stdout = tool.stdin, tool.stdout

    def check(direction: str, frame: bytes) -> str:
        stdin.write(f"{direction} {frame.hex()}\n")
        stdin.flush()
        return stdout.readline().strip()

    yield check
    stdin.close()
    assert tool.wait() == 0


@pytest.fixture
def area(tmp_path: Path) -> Iterator[Area]:
    """Volumes of a zone, on the host."""
    made = Area(tmp_path / "area")
    made.make()
    yield made
    made.remove()
