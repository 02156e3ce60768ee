"""Loss of a domain's disk, over a xenstore and a libxl in memory: its guest can delay callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from protect.host.disk_rates.backends import BackendRates
from protect.host.disk_rates.groups import DiskGroups
from protect.host.disk_rates.threads import BackendThreads
from protect.toolstack.libxl.deaths import Known
from protect.toolstack.libxl.devices import disks as module
from protect.toolstack.libxl.devices.disks import Disks
from tests.support.waiting import until
from xenbind import errors


class MemoryXen:
    """libxl's view of disks, and xenstore with its watches: ``Workers`` and ``AsyncStore`` at once."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.attached: list[str] = []
        self.removed: list[str] = []
        self._watches: list[asyncio.Event] = []

    def attach(self, vdev: str) -> None:
        self.attached.append(vdev)
        self.nodes[f"/backend/{vdev}/state"] = b"4"

    async def run(self, function: Callable[..., object], *args: object, **more: object) -> object:
        await asyncio.sleep(0)
        return function(self, *args, **more)

    ask = run

    def backend(self, domid: int, vdev: str) -> str:
        if vdev not in self.attached:
            raise errors.DeviceNotFound("backend", -1, vdev)
        return f"/backend/{vdev}"

    def detach_disk(self, domid: int, vdev: str, *, force: bool) -> None:
        self.backend(domid, vdev)
        assert force
        self.attached.remove(vdev)
        self.removed.append(vdev)
        self.nodes = {path: value for path, value in self.nodes.items() if f"/{vdev}/" not in path}

    async def read(self, path: str) -> bytes | None:
        return self.nodes.get(path)

    async def write_below(self, node: str, name: str, value: str) -> None:
        if not any(path.startswith(f"{node}/") for path in self.nodes):
            raise FileNotFoundError(node)
        self.nodes[f"{node}/{name}"] = value.encode()
        for watch in self._watches:
            watch.set()

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator[asyncio.Event]:
        changed = asyncio.Event()
        changed.set()
        self._watches.append(changed)
        yield changed
        self._watches.remove(changed)


@pytest.fixture
def xen(monkeypatch: pytest.MonkeyPatch) -> MemoryXen:
    monkeypatch.setattr(module, "vbd", MemoryXen)
    return MemoryXen()


@pytest.fixture
def known() -> Known:
    return Known(7, uuid4(), "z", 1)


def _disks(xen: MemoryXen, patience: float) -> Disks:
    rates = BackendRates(DiskGroups(None), BackendThreads(), lambda: xen.watch(""), lambda *_: None)
    return Disks(xen, xen, patience, rates)  # type: ignore[arg-type]


async def _asked(xen: MemoryXen, *vdevs: str) -> None:
    await until(lambda: all(xen.nodes.get(f"/backend/{vdev}/state") == b"5" for vdev in vdevs))


async def test_a_disk_released_by_its_guest_is_removed(xen: MemoryXen, known: Known) -> None:
    xen.attach("xvda")
    detaching = asyncio.create_task(_disks(xen, 3600).detach(known, "xvda"))
    await _asked(xen, "xvda")
    assert xen.nodes["/backend/xvda/online"] == b"0" and not known.lock.locked()
    await xen.write_below("/backend/xvda", "state", "6")
    await asyncio.wait_for(detaching, 60)
    assert xen.removed == ["xvda"]


async def test_nothing_is_written_for_a_domain_destroyed_during_the_detach(
    xen: MemoryXen, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    xen.attach("xvda")
    read = xen.read

    async def destroyed_after(path: str) -> bytes | None:
        value = await read(path)
        xen.nodes.clear()
        xen.attached.clear()
        return value

    monkeypatch.setattr(xen, "read", destroyed_after)
    await asyncio.wait_for(_disks(xen, 3600).detach(known, "xvda"), 60)
    assert not xen.nodes


async def test_a_silent_guest_loses_all_disks_together(xen: MemoryXen, known: Known) -> None:
    vdevs = ["xvda", "xvdb", "xvdc"]
    for vdev in vdevs:
        xen.attach(vdev)
    disks = _disks(xen, 0.2)
    detaching = [asyncio.create_task(disks.detach(known, vdev)) for vdev in vdevs]
    await _asked(xen, *vdevs)  # the last before the first has gone
    await asyncio.wait_for(asyncio.gather(*detaching), 60)
    assert sorted(xen.removed) == vdevs


async def test_abandoned_domain_loses_its_disks_at_once(xen: MemoryXen, known: Known) -> None:
    for vdev in ("xvda", "xvdb"):
        xen.attach(vdev)
    disks = _disks(xen, 3600)
    detaching = asyncio.create_task(disks.detach(known, "xvda"))
    await _asked(xen, "xvda")
    known.abandoned.set()
    await asyncio.wait_for(detaching, 60)
    await asyncio.wait_for(disks.detach(known, "xvdb"), 60)
    assert xen.removed == ["xvda", "xvdb"] and not xen.nodes


async def test_nothing_is_taken_from_the_next_domain_of_its_number(xen: MemoryXen, known: Known) -> None:
    xen.attach("xvda")
    detaching = asyncio.create_task(_disks(xen, 3600).detach(known, "xvda"))
    await _asked(xen, "xvda")
    async with known.lock:  # as destroy holds the lock
        known.abandoned.set()
        known.forgotten = True
    await asyncio.wait_for(detaching, 60)
    assert xen.removed == []


async def test_two_callers_detach_a_disk_once(xen: MemoryXen, known: Known) -> None:
    """Otherwise the second caller would take a later disk of the same name."""
    xen.attach("xvda")
    disks = _disks(xen, 3600)
    detaching = [asyncio.create_task(disks.detach(known, "xvda")) for _ in range(2)]
    await _asked(xen, "xvda")
    await xen.write_below("/backend/xvda", "state", "6")
    await asyncio.wait_for(asyncio.gather(*detaching), 60)
    assert xen.removed == ["xvda"]


async def test_detach_of_a_missing_or_closed_disk_succeeds(xen: MemoryXen, known: Known) -> None:
    disks = _disks(xen, 3600)
    await asyncio.wait_for(disks.detach(known, "xvda"), 60)
    xen.attach("xvda")
    await xen.write_below("/backend/xvda", "state", "6")
    await asyncio.wait_for(disks.detach(known, "xvda"), 60)
    assert xen.removed == ["xvda"]
