"""protectd's logic in one process: real store, real links and logs, domains and agents in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from daemonkit.config import Seconds
from daemonkit.faults import Broken
from protect.assembly import Assembly, HostPorts
from protect.channel.link import Link
from protect.config import HostConfig, Profile, ProtectdConfig, Timeouts, ZoneLimits
from protect.model.container import ImageFilesystem, WorkloadSpec
from protect.model.copied_files import FileChunk, FileTree, FileVolume, FoundFiles, WantedFiles
from protect.model.ports import HostFiles
from protect.model.toolstack import Mode
from protect.model.volume import HostBlockDevice, Volume, VolumeSource
from protect.model.zone import GuestNetwork, GuestRoute, ZoneIdMapping, ZoneSpec
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.state.store import SqliteStore
from protect.stdio.log import WorkloadLog
from protect.volumes.scratch import ScratchFiles
from protect.zones.size import resize as resizing
from protect.zones.size.resize import ZoneSize
from tests.support.protect.memory_toolstack import MemoryToolstack

T = TypeVar("T")

MIB = 1 << 20
CALL = "call"
"""Name of the tasks of served verbs."""
FAST = Timeouts(
    boot=Seconds(5.0), call=Seconds(10.0), stats=Seconds(2.0), drain=Seconds(0.3), stop=Seconds(10.0)
)
"""Limit of waits that every test passes, also on a machine that stalls for a moment."""


class MemorySplice:
    """Remembers the spliced interfaces."""

    def __init__(self) -> None:
        self.spliced: list[tuple[str, str, str]] = []

    async def __call__(
        self, host_interface: str, netns: str, interface: str, *, spoof_check: bool
    ) -> GuestNetwork:
        self.spliced.append((host_interface, netns, interface))
        return GuestNetwork(b"\2\0\0\0\0\1", 1500, ("10.0.0.2/24",), (GuestRoute("0.0.0.0/0", "10.0.0.1"),))


class MemoryVolumes:
    """Remembers attached volumes, by zone and workload; ``failing`` names the operations that fail."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.attached: dict[str, dict[str, list[str]]] = {}
        self.failing: set[str] = set()

    def shared(self, zone_id: str) -> Path:
        return self.root / zone_id / "shared"

    def users(self, zone_id: str) -> list[str]:
        return list(self.attached.get(zone_id, ()))

    async def open(self, zone_id: str) -> None:
        self._step("open")
        self.attached[zone_id] = {}

    async def close(self, zone_id: str) -> None:
        self._step("close")
        self.attached.pop(zone_id, None)

    def zones(self) -> list[str]:
        return list(self.attached)

    def resume(self, zone_id: str) -> None:
        """A volume in memory follows nobody."""

    async def take(
        self, zone_id: str, volumes: Sequence[Volume], timeout: float, ids: ZoneIdMapping | None = None
    ) -> list[VolumeSource]:
        self._step("take")
        return [VolumeSource(volume, os.open("/dev/null", os.O_RDONLY), directory=True) for volume in volumes]

    async def attach(self, zone_id: str, workload_id: str, sources: Sequence[VolumeSource]) -> None:
        self._step("attach")
        if sources:
            names = [source.volume.name for source in sources if os.fstat(source.tree)]
            self.attached[zone_id][workload_id] = names

    async def detach(self, zone_id: str, workload_id: str) -> None:
        self._step("detach")
        self.attached.get(zone_id, {}).pop(workload_id, None)

    def _step(self, operation: str) -> None:
        if operation in self.failing:
            raise Broken(operation, "volumes", "failed on purpose")


class MemoryFiles:
    """``HostFiles`` of a host that has none: all file volumes are shared."""

    async def find(self, zone_id: str, wanted: Sequence[WantedFiles], timeout: float) -> list[FoundFiles]:
        return [FoundFiles(reason="there is nothing") for _ in wanted]

    async def read(self, zone_id: str, tree: FileTree, chunks: Sequence[FileChunk]) -> list[bytes]:
        raise AssertionError("nothing was found")

    async def give_back(self, zone_id: str, volume: FileVolume, content: bytes, timeout: float) -> None:
        raise AssertionError("nothing was found")


class MemoryDevices:
    """``HostDevices`` of a host that has every requested block device, once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    async def find(self, zone_id: str, paths: Sequence[str], timeout: float) -> list[HostBlockDevice]:
        return [
            HostBlockDevice(Path(path), self._numbers.setdefault(path, 0x1000 + len(self._numbers)))
            for path in paths
        ]


@asynccontextmanager
async def running(
    folder: Path,
    toolstack: MemoryToolstack,
    limits: ZoneLimits | None = None,
    total: int = 4096 * MIB,
    volumes: MemoryVolumes | None = None,
    files: HostFiles | None = None,
    host: HostConfig | None = None,
    **config_values: object,
) -> AsyncIterator[Assembly]:
    """A daemon without its server; an exit is an orderly stop, and another entry is a restart."""
    named = host.devices.values() if host else ()
    values: dict[str, object] = {
        "limits": limits or ZoneLimits(),
        "timeouts": replace(FAST),
        "host": host or HostConfig(),
        "profiles": {name: Profile() for device in named for name in device.profiles},
    }
    config = ProtectdConfig(folder / "run", folder / "state", **(values | config_values))  # type: ignore[arg-type]
    config.state_dir.mkdir(parents=True, exist_ok=True)
    store = SqliteStore(config.state_dir / "protect.db")
    ports = HostPorts(
        volumes=volumes or MemoryVolumes(folder / "volumes"),
        files=files or MemoryFiles(),
        devices=MemoryDevices(),
        scratch=ScratchFiles(config.scratch_dir, reserve=0),
        splice=MemorySplice(),
        logs=WorkloadLog.open,
        links=Link,
    )
    protectd = Assembly(config, toolstack, ports, Registry(store, config.timeouts), Ledger(total))
    recorded = await protectd.loader.load()
    watching = asyncio.create_task(protectd.deaths.watch())
    following = asyncio.create_task(protectd.sampler.follow())
    for zone in recorded:
        protectd.lifetime.tasks.spawn(protectd.reconcile.reconcile(zone), f"reconcile {zone.runtime.id}")
    try:
        yield protectd
    finally:
        watching.cancel()
        following.cancel()
        protectd.stop()
        hasten(protectd, stop=0.1)
        await protectd.close()
        store.close()


def served(protectd: Assembly, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a verb as the gRPC server does, for a client that goes away when the task is cancelled."""
    return asyncio.create_task(protectd.lifetime.tasks.run(work, CALL))


def zone_spec(zone_id: str = "z1", memory: int = 256 * MIB, interfaces: int = 0) -> ZoneSpec:
    return ZoneSpec(zone_id, "web", "host", "default", memory, 1, Mode.PV, interfaces)


def workload_spec(folder: Path, workload_id: str = "w1", zone_id: str = "z1", **more: object) -> WorkloadSpec:
    image = folder / "image.squashfs"
    image.touch()
    values: dict[str, object] = {"log_path": str(folder / f"{workload_id}.log")} | more
    return WorkloadSpec(workload_id, zone_id, b"{}", (ImageFilesystem(image, "squashfs"),), **values)  # type: ignore[arg-type]


def hasten(protectd: Assembly, **seconds: float) -> None:
    """Further deadlines for a test that waits.  All parts of the daemon share one ``Timeouts``."""
    for name, value in seconds.items():
        object.__setattr__(protectd.config.timeouts, name, Seconds(value))
    for zone in protectd.registry.zones.values():
        zone.client.call_timeout = protectd.config.timeouts.call


async def resize(protectd: Assembly, zone_id: str, wanted: ZoneSize, *, only_more: bool = False) -> list[str]:
    parts = (protectd.registry, protectd.sizing, protectd.config)
    return await resizing.resize(*parts, zone_id, wanted, only_more=only_more)
