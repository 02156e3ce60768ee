"""Rates of disks in control groups of both versions, and the threads of a kernel that is a folder here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protect.host.disk_rates.backends import BackendRates
from protect.host.disk_rates.groups import DiskGroups
from protect.host.disk_rates.threads import BackendThread, BackendThreads
from protect.host.disk_rates.throttle import can_throttle, lift, throttle, whole_disk
from protect.model.domain.shares import DiskRates
from tests.support.protect.stage import PATIENCE
from tests.support.waiting import until

RATES = DiskRates(1000, 0, 0, 20)
LOOP = os.makedev(7, 3)
V1 = ("read_bps", "write_bps", "read_iops", "write_iops")


def first(group: Path) -> dict[str, str]:
    return {name: (group / f"blkio.throttle.{name}_device").read_text() for name in V1}


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    group = tmp_path / "v1"
    group.mkdir()
    for name in V1:
        (group / f"blkio.throttle.{name}_device").touch()
    return group


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    group = tmp_path / "v2"
    group.mkdir()
    (group / "io.max").touch()
    return group


def test_both_versions_are_told_all_four(v1: Path, v2: Path, tmp_path: Path) -> None:
    assert can_throttle(v1) and can_throttle(v2) and not can_throttle(tmp_path)
    for group in (v1, v2):
        throttle(group, LOOP, RATES)
    assert (v2 / "io.max").read_text() == "7:3 rbps=1000 wbps=max riops=max wiops=20"
    assert list(first(v1).values()) == ["7:3 1000", "7:3 0", "7:3 0", "7:3 20"]


def test_more_operations_than_version_1_takes(v1: Path) -> None:
    throttle(v1, LOOP, DiskRates(2**50, 0, 2**50, 0))
    assert list(first(v1).values()) == [f"7:3 {2**50}", "7:3 0", f"7:3 {2**32 - 1}", "7:3 0"]


def test_all_rates_are_lifted(v1: Path, v2: Path) -> None:
    throttle(v2, LOOP, RATES)
    throttle(v1, LOOP, RATES)
    lift(v1)
    lift(v2)
    assert (v2 / "io.max").read_text() == "7:3 rbps=max wbps=max riops=max wiops=max"
    assert set(first(v1).values()) == {"7:3 0"}


def test_a_partition_has_the_rates_of_its_disk(tmp_path: Path) -> None:
    disk = tmp_path / "devices/vda"
    (disk / "vda1").mkdir(parents=True)
    (disk / "dev").write_text("254:0\n")
    (disk / "vda1/partition").write_text("1\n")
    (tmp_path / "dev/block").mkdir(parents=True)
    for number, place in (("254:0", disk), ("254:1", disk / "vda1")):
        (tmp_path / "dev/block" / number).symlink_to(place)
    assert [whole_disk(os.makedev(254, minor), tmp_path) for minor in (0, 1, 2)] == [
        "254:0",
        "254:0",
        "254:2",
    ]


def test_the_lower_of_two_rates() -> None:
    most = DiskRates(500, 500, 0, 0)
    assert DiskRates(1000, 0, 7, 0).within(most) == DiskRates(500, 500, 7, 0)
    assert DiskRates(1000).exceeds(most) and not DiskRates(0, 500, 9).exceeds(most)
    assert not DiskRates() and DiskRates(0, 0, 0, 1)


# -- groups


def _proc(folder: Path, kind: str, options: str) -> Path:
    folder.mkdir(exist_ok=True)
    line = f"30 20 0:25 / {folder}/{kind} rw - {kind} {kind} rw,{options}\n"
    (folder / "mountinfo").write_text("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + line)
    (folder / kind).mkdir(exist_ok=True)
    return folder


def test_a_host_without_the_controller_can_hold_none(tmp_path: Path) -> None:
    second = _proc(tmp_path / "second", "cgroup2", "nsdelegate")
    (second / "cgroup2/cgroup.controllers").write_text("cpu memory pids\n")
    groups = DiskGroups.find(second)
    assert not groups.usable
    groups.remove("u")
    groups.lift("u")
    with pytest.raises(FileNotFoundError, match="no control groups for disks"):
        groups.make("u")
    (second / "cgroup2/cgroup.controllers").write_text("cpu io memory pids\n")
    assert DiskGroups.find(second).usable
    assert not DiskGroups.find(_proc(tmp_path / "first", "cgroup", "memory")).usable


def test_a_controller_without_rates_is_reported(tmp_path: Path) -> None:
    """CONFIG_BLK_CGROUP, and no CONFIG_BLK_DEV_THROTTLING."""
    with pytest.raises(FileNotFoundError, match="CONFIG_BLK_DEV_THROTTLING"):
        DiskGroups(tmp_path).make("u")
    assert list(tmp_path.iterdir()) == []


def test_only_groups_of_gone_domains_are_strays(tmp_path: Path) -> None:
    for name in ("mine", "gone"):
        (tmp_path / "xenpod-disks" / name).mkdir(parents=True)
    DiskGroups(tmp_path).remove_strays({"mine"})
    assert [path.name for path in (tmp_path / "xenpod-disks").iterdir()] == ["mine"]


# -- threads


class Kernel:
    """/proc with threads, and a hierarchy whose groups have their files."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.base = folder / "proc", folder / "cgroup"
        (self.proc / "2/task/2").mkdir(parents=True)
        self.threads: dict[int, str] = {}
        self.changed = asyncio.Event()
        self.reconnected: list[tuple[int, str]] = []
        self.set({})
        self.rates = BackendRates(
            Groups(self.base),
            BackendThreads(self.proc),
            self.watch,
            lambda *one: self.reconnected.append(one),
        )

    def set(self, threads: dict[int, str]) -> None:
        self.threads = threads
        for pid, name in threads.items():
            (self.proc / str(pid)).mkdir(exist_ok=True)
            (self.proc / str(pid) / "comm").write_text(name + "\n")
        (self.proc / "2/task/2/children").write_text(" ".join(map(str, threads)))
        self.changed.set()

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[asyncio.Event]:
        yield self.changed

    def placed(self, name: str) -> list[int]:
        file = self.base / "xenpod-disks" / name / "moved"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []


class Groups(DiskGroups):
    """Writes down a kernel's actions."""

    def make(self, name: str) -> Path:
        group = self.group(name)
        group.mkdir(parents=True, exist_ok=True)
        (group / "io.max").touch()
        return group

    def place(self, name: str, thread: int) -> None:
        with (self.group(name) / "moved").open("a") as file:
            file.write(f"{thread} ")


@pytest.fixture
async def kernel(tmp_path: Path) -> AsyncIterator[Kernel]:
    kernel = Kernel(tmp_path)
    yield kernel
    await kernel.rates.close()


def test_blkbacks_threads_are_told_by_their_names(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    threads = BackendThreads(kernel.proc)
    kernel.set({5: "7.xvda-0", 6: "7.xvdaa-12", 8: "kthreadd", 9: "kworker/0:1", 10: "7.sda-0", 11: "7.xvda"})
    assert sorted(threads.look(), key=lambda one: one.pid) == [
        BackendThread(5, 7, "xvda"),
        BackendThread(6, 7, "xvdaa"),
    ]
    kernel.set({6: "other", 8: "32751.xvdb-3"})
    assert sorted(threads.look(), key=lambda one: one.pid) == [
        BackendThread(6, 7, "xvdaa"),
        BackendThread(8, 32751, "xvdb"),
    ], "a thread keeps its name, and one without a name gets one"


async def test_threads_come_into_the_group_of_their_domain(kernel: Kernel) -> None:
    await kernel.rates.hold(7, "seven", RATES, [LOOP])
    assert (kernel.base / "xenpod-disks/seven/io.max").read_text().startswith("7:3 rbps=1000")
    kernel.set({5: "7.xvda-0", 6: "8.xvda-0"})
    await until(lambda: kernel.placed("seven") == [5], PATIENCE)
    kernel.set({5: "7.xvda-0", 6: "8.xvda-0", 7: "7.xvda-1"})
    await until(lambda: kernel.placed("seven") == [5, 7], PATIENCE)
    assert not kernel.reconnected, "a ring's thread may begin later than another's"
    await kernel.rates.attaching(7, os.makedev(7, 4))
    assert (kernel.base / "xenpod-disks/seven/io.max").read_text().startswith("7:4 rbps=1000")
    await kernel.rates.detaching(7, os.makedev(7, 4))
    assert "rbps=max" in (kernel.base / "xenpod-disks/seven/io.max").read_text()


async def test_a_reconnected_disk_is_held_and_reported(kernel: Kernel) -> None:
    await kernel.rates.hold(7, "seven", RATES, [])
    kernel.set({5: "7.xvda-0", 6: "7.xvdb-0"})
    await until(lambda: kernel.placed("seven") == [5, 6], PATIENCE)
    kernel.set({5: "7.xvda-0"})
    await kernel.rates.look()
    assert not kernel.reconnected, "a guest that lets go of its disks may be about to end"
    kernel.set({5: "7.xvda-0", 9: "7.xvdb-0"})
    await until(lambda: bool(kernel.reconnected), PATIENCE)
    assert kernel.reconnected == [(7, "xvdb")] and kernel.placed("seven") == [5, 6, 9]


async def test_another_disk_of_the_same_name_is_no_violation(kernel: Kernel) -> None:
    await kernel.rates.hold(7, "seven", RATES, [])
    kernel.set({5: "7.xvda-0"})
    await until(lambda: kernel.placed("seven") == [5], PATIENCE)
    kernel.set({})
    await kernel.rates.detached(7, "xvda")
    kernel.set({6: "7.xvda-0"})
    await until(lambda: kernel.placed("seven") == [5, 6], PATIENCE)
    assert not kernel.reconnected


async def test_without_rates_there_is_no_group(kernel: Kernel) -> None:
    await kernel.rates.hold(7, "seven", DiskRates(), [LOOP])
    await kernel.rates.attaching(7, LOOP)
    assert not kernel.base.exists()
    await kernel.rates.hold(7, "seven", RATES, [LOOP])
    await kernel.rates.hold(7, "seven", DiskRates(), [LOOP])
    assert "rbps=max" in (kernel.base / "xenpod-disks/seven/io.max").read_text()


async def test_rates_of_an_earlier_daemon_are_lifted(kernel: Kernel) -> None:
    group = Groups(kernel.base).make("seven")
    throttle(group, LOOP, RATES)
    await kernel.rates.hold(7, "seven", DiskRates(), [])
    assert "rbps=max" in (group / "io.max").read_text() and not kernel.rates.holds(7)
