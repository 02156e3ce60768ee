"""Control groups of fake zones.  They stand in for a domain's memory, vCPUs and end.

If v1 controllers are mounted (alone or hybrid), a zone has a group under each of them; the v2 hierarchy of a
hybrid system is left alone.  On a pure v2 system a zone has one group.  Groups are
``<root>/xenpod-<instance>/<domain>``; the zone's own cgroup namespace begins there.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from daemonkit.faults import Broken, Unsupported
from protect.host.disk_rates.throttle import can_throttle, lift, throttle
from protect.model.domain.shares import CpuShares, DiskRates
from protect.model.toolstack import DomainSpec
from protect.toolstack.fake.hierarchies import Hierarchy, read_control, write_control
from protect.toolstack.fake.resizing import limits
from protect.toolstack.fake.resizing.limits import CgroupLimits
from protect.toolstack.pidfd_process import PidfdProcess

_REMOVAL_SECONDS = 10.0
"""Seconds within which killed processes must be gone."""
_FREEZER = {"freezer.state": ("THAWED", "FROZEN"), "cgroup.freeze": ("0", "1")}
_FROZEN = ("FROZEN", "FREEZING", "1")
_V2_CONTROLLERS = ("cpu", "memory", "pids")


class Cgroups:
    """The groups of one instance; every step may be repeated."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...], instance: str) -> None:
        self._hierarchies = hierarchies
        self._instance = f"xenpod-{instance}"
        self._making = threading.Lock()

    def groups(self, domain: str) -> list[Path]:
        """The directories of a domain, one in each hierarchy."""
        return [hierarchy.base / self._instance / domain for hierarchy in self._hierarchies]

    def create(self, domain: str, given: CgroupLimits) -> list[Path]:
        """Make the groups of a domain, and set their limits."""
        for hierarchy in self._hierarchies:
            parent = hierarchy.base / self._instance
            group = parent / domain
            with self._making:  # another create must not take a group without controllers as finished
                _make(hierarchy, hierarchy.base, parent)
                _let_inherit(hierarchy, parent)
            _make(hierarchy, parent, group)
            limits.limit(hierarchy, group, given)
        return self.groups(domain)

    def share(self, spec: DomainSpec, shares: CpuShares) -> None:
        """Set the share of the host's CPUs of a domain that has groups."""
        for hierarchy in self._hierarchies:
            limits.share(hierarchy, hierarchy.base / self._instance / str(spec.uuid), spec.vcpus, shares)

    def set_memory(self, domain: str, memory_bytes: int) -> None:
        """Set the memory limit.  Refused: more is in use."""
        for hierarchy in self._hierarchies:
            limits.set_memory(hierarchy, hierarchy.base / self._instance / domain, memory_bytes)

    def note_vcpus(self, domain: str, vcpus: int) -> None:
        """Tell the domain how many vCPUs it has."""
        for hierarchy in self._hierarchies:
            limits.note_vcpus(hierarchy, hierarchy.base / self._instance / domain, vcpus)

    def memory_limit(self, domain: str) -> int:
        """The kernel's memory limit of a domain in bytes; 0 if its groups are gone."""
        bases = ((one, one.base / self._instance / domain) for one in self._hierarchies)
        return max(limits.memory_limit(hierarchy, group) for hierarchy, group in bases)

    @property
    def can_throttle(self) -> bool:
        """Whether this kernel can enforce disk rates."""
        return any(
            "blkio" in one.controllers or "io" in read_control(one.base / "cgroup.controllers").split()
            for one in self._hierarchies
        )

    def throttle(self, domain: str, device: int, rates: DiskRates) -> None:
        """Set the rates of a disk (its st_rdev) of a domain that has groups."""
        for group in self.groups(domain):
            if can_throttle(group):
                throttle(group, device, rates)

    def freeze(self, domain: str, *, frozen: bool) -> None:
        """Freeze or thaw the domain's processes.  Unsupported: the host has no freezer."""
        switches = [path for path in self._freezers(domain) if path.exists()]
        if not switches:
            raise Unsupported(
                "pause domain", domain, "this host has no freezer cgroup", "mount it, or cgroup v2"
            )
        for switch in switches:
            write_control(switch, _FREEZER[switch.name][frozen])

    def frozen(self, domain: str) -> bool:
        """Whether the domain is frozen."""
        return any(read_control(path).strip() in _FROZEN for path in self._freezers(domain))

    def _freezers(self, domain: str) -> Iterator[Path]:
        """The existing v1 or v2 files with the freezer's state."""
        for hierarchy in self._hierarchies:
            group = hierarchy.base / self._instance / domain
            if hierarchy.unified:
                yield group / "cgroup.freeze"
            elif "freezer" in hierarchy.controllers:
                yield group / "freezer.state"

    def lift(self, domain: str) -> None:
        """Lift all rates of a domain's disks: throttled I/O would delay the domain's end."""
        for top in self.groups(domain):
            for group in _bottom_up(top):
                lift(group)

    def cpu_time_ns(self, domain: str) -> int:
        """CPU time of the domain in ns; 0 if its groups are gone."""
        for hierarchy in self._hierarchies:
            group = hierarchy.base / self._instance / domain
            if hierarchy.unified:
                for line in read_control(group / "cpu.stat").splitlines():
                    if line.startswith("usage_usec "):
                        return int(line.split()[1]) * 1000
            elif "cpuacct" in hierarchy.controllers:
                return int(read_control(group / "cpuacct.usage") or 0)
        return 0

    def domains(self) -> set[str]:
        """Names of all groups of this instance, forgotten domains included."""
        found: set[str] = set()
        for hierarchy in self._hierarchies:
            with suppress(FileNotFoundError):
                found |= {
                    entry.name for entry in os.scandir(hierarchy.base / self._instance) if entry.is_dir()
                }
        return found

    async def remove(self, domain: str) -> None:
        """Kill the groups' processes and remove the groups.  Thaw first: frozen processes would not die."""
        if self.frozen(domain):
            self.freeze(domain, frozen=False)
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while await asyncio.to_thread(self._remove_empty, domain):
            if time.monotonic() > deadline:
                raise Broken("remove cgroups", domain, "processes in them do not end")
            await _end_members(self.groups(domain), deadline)

    def remove_instance(self) -> None:
        """Remove the instance's own directories, if they hold no domain."""
        for hierarchy in self._hierarchies:
            with suppress(OSError):
                os.rmdir(hierarchy.base / self._instance)

    def _remove_empty(self, domain: str) -> bool:
        """Remove the groups without members; returns whether any group remains."""
        left = False
        for top in self.groups(domain):
            for group in _bottom_up(top):
                try:
                    os.rmdir(group)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                        raise
                    left = True
        return left


def _make(hierarchy: Hierarchy, parent: Path, group: Path) -> None:
    if hierarchy.unified:
        _enable(parent)
    with suppress(FileExistsError):
        os.mkdir(group)
    if "cpuset" in hierarchy.controllers:  # a new v1 cpuset accepts no process before both are set
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not read_control(group / name).strip():
                write_control(group / name, read_control(parent / name).strip())


def _let_inherit(hierarchy: Hierarchy, parent: Path) -> None:
    """Make all groups below a v1 cpuset inherit its settings, crun's groups too.

    A write of cpuset files rebuilds the scheduling domains; the time grows with the host's groups and tasks.
    """
    switch = parent / "cgroup.clone_children"
    if "cpuset" in hierarchy.controllers and read_control(switch).strip() != "1":
        write_control(switch, "1")


def _enable(parent: Path) -> None:
    there = read_control(parent / "cgroup.controllers").split()
    missing = [name for name in _V2_CONTROLLERS if name not in there]
    if missing:
        raise Unsupported("use cgroup", str(parent), f"has no {', '.join(missing)} controller")
    enabled = read_control(parent / "cgroup.subtree_control").split()
    wanted = [f"+{name}" for name in there if name not in enabled]
    if wanted:
        write_control(parent / "cgroup.subtree_control", " ".join(wanted))


async def _end_members(groups: list[Path], deadline: float) -> None:
    """SIGKILL every process in the groups, and wait for their ends."""
    members = [process for pid in _members(groups) if (process := PidfdProcess.open(pid))]
    try:
        for process in members:
            process.kill()
        async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
            for process in members:
                await process.wait()
    except TimeoutError:
        return  # the caller checks the deadline
    finally:
        for process in members:
            process.close()
    # A task leaves its group a moment after its parent can reap it.
    if not members:
        await asyncio.sleep(0.002)


def _members(groups: list[Path]) -> set[int]:
    everywhere = (group for top in groups for group in _bottom_up(top))
    return {int(pid) for group in everywhere for pid in read_control(group / "cgroup.procs").split()}


def _bottom_up(top: Path) -> Iterator[Path]:
    for path, _, _ in os.walk(top, topdown=False):
        yield Path(path)
