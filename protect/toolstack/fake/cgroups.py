"""The control groups of fake zones, which stand in for a domain's memory, vCPUs and end.

Where v1 controllers are mounted (alone or hybrid) a zone has a group under each of them; the v2
hierarchy of a hybrid system is left alone.  On a pure v2 system it has one group.  Groups are
``<root>/xenpod-<instance>/<domain>``; the zone's own cgroup namespace begins there.

Sources: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst, systemd CGROUP_DELEGATION.md.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Broken, Unsupported
from daemonkit.host import mountinfo
from daemonkit.host.cgroups import delegated
from protect.toolstack.process import PidfdProcess

_PERIOD_US = 100_000
_REMOVAL_SECONDS = 10.0
"""Seconds within which killed processes must be gone."""
_V2_CONTROLLERS = ("cpu", "memory", "pids")


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The limits of one zone."""

    memory_bytes: int
    vcpus: int
    pids: int


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy; ``controllers`` is empty for the v2 hierarchy and named v1 ones."""

    base: Path
    controllers: frozenset[str]
    unified: bool


class Cgroups:
    """The groups of one instance; every step may be repeated."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...], instance: str) -> None:
        self._hierarchies = hierarchies
        self._instance = f"xenpod-{instance}"
        self._making = threading.Lock()

    def groups(self, domain: str) -> list[Path]:
        """The directories of a domain, one in each hierarchy."""
        return [hierarchy.base / self._instance / domain for hierarchy in self._hierarchies]

    def create(self, domain: str, limits: CgroupLimits) -> list[Path]:
        """Make the groups of a domain, and set their limits."""
        for hierarchy in self._hierarchies:
            parent = hierarchy.base / self._instance
            group = parent / domain
            with self._making:  # a group without its controllers must not be taken for a finished one
                _make(hierarchy, hierarchy.base, parent)
                _let_inherit(hierarchy, parent)
            _make(hierarchy, parent, group)
            _limit(hierarchy, group, limits)
        return self.groups(domain)

    def cpu_time_ns(self, domain: str) -> int:
        """CPU time that the domain has used, 0 when its groups are gone."""
        for hierarchy in self._hierarchies:
            group = hierarchy.base / self._instance / domain
            if hierarchy.unified:
                for line in _read(group / "cpu.stat").splitlines():
                    if line.startswith("usage_usec "):
                        return int(line.split()[1]) * 1000
            elif "cpuacct" in hierarchy.controllers:
                return int(_read(group / "cpuacct.usage") or 0)
        return 0

    def domains(self) -> set[str]:
        """Names of all groups of this instance, those of forgotten domains included."""
        found: set[str] = set()
        for hierarchy in self._hierarchies:
            with suppress(FileNotFoundError):
                found |= {
                    entry.name for entry in os.scandir(hierarchy.base / self._instance) if entry.is_dir()
                }
        return found

    async def remove(self, domain: str) -> None:
        """Kill what is left in the groups and remove them."""
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while await asyncio.to_thread(self._remove_empty, domain):
            if time.monotonic() > deadline:
                raise Broken("remove cgroups", domain, "processes in them do not end")
            await _end_members(self.groups(domain), deadline)

    def remove_instance(self) -> None:
        """Remove the instance's own directories, if no domain is left in them."""
        for hierarchy in self._hierarchies:
            with suppress(OSError):
                os.rmdir(hierarchy.base / self._instance)

    def _remove_empty(self, domain: str) -> bool:
        """Remove the groups without members; returns whether any is left."""
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


def find_hierarchies(proc: Path = Path("/proc/self")) -> tuple[Hierarchy, ...]:
    """The hierarchies to use on this host.  Unsupported: none that can limit memory."""
    first: list[Hierarchy] = []
    second: list[Hierarchy] = []
    for mount in mountinfo.read(proc / "mountinfo"):
        place = Path(mount.place)
        if mount.kind == "cgroup":
            # of "rw,memory" all but the mount flags name controllers; name=... is a named hierarchy
            hierarchy = Hierarchy(place, mount.options - {"rw", "ro"}, unified=False)
            if hierarchy.controllers not in [other.controllers for other in first]:  # mounted a second time
                first.append(hierarchy)
        elif mount.kind == "cgroup2":
            second.append(Hierarchy(_v2_base(place, proc), frozenset(), unified=True))
    if any("memory" in hierarchy.controllers for hierarchy in first):
        return tuple(first)
    if second:
        return (second[0],)
    raise Unsupported("find cgroups", str(proc / "mountinfo"), "neither cgroup v2 nor a v1 memory controller")


def _v2_base(mount: Path, proc: Path) -> Path:
    """The delegated group that the daemon runs below, if a manager gave it one; else the root.

    A group that the daemon itself is in cannot be used: it could not have both members and
    controllers for children, and the manager could not start the daemon in it again.
    """
    own = next(
        (line[3:] for line in (proc / "cgroup").read_text().splitlines() if line.startswith("0::")), "/"
    )
    group = mount / own.strip().lstrip("/")
    for parent in group.parents:
        if parent == mount or mount not in parent.parents:
            break
        if delegated(parent):
            return parent
    return mount


def _make(hierarchy: Hierarchy, parent: Path, group: Path) -> None:
    if hierarchy.unified:
        _enable(parent)
    with suppress(FileExistsError):
        os.mkdir(group)
    if "cpuset" in hierarchy.controllers:  # a new v1 cpuset takes no process until it has both
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not _read(group / name).strip():
                _write(group / name, _read(parent / name).strip())


def _let_inherit(hierarchy: Hierarchy, parent: Path) -> None:
    """Have all groups below a v1 cpuset, crun's too, begin with what it has.

    To write it takes longer the more groups and tasks the host has: it plans its scheduling anew.
    """
    switch = parent / "cgroup.clone_children"
    if "cpuset" in hierarchy.controllers and _read(switch).strip() != "1":
        _write(switch, "1")


def _enable(parent: Path) -> None:
    there = _read(parent / "cgroup.controllers").split()
    missing = [name for name in _V2_CONTROLLERS if name not in there]
    if missing:
        raise Unsupported("use cgroup", str(parent), f"has no {', '.join(missing)} controller")
    enabled = _read(parent / "cgroup.subtree_control").split()
    wanted = [f"+{name}" for name in there if name not in enabled]
    if wanted:
        _write(parent / "cgroup.subtree_control", " ".join(wanted))


def _limit(hierarchy: Hierarchy, group: Path, limits: CgroupLimits) -> None:
    quota = limits.vcpus * _PERIOD_US
    if hierarchy.unified:
        _write(group / "memory.max", str(limits.memory_bytes))
        _write(group / "cpu.max", f"{quota} {_PERIOD_US}")
        _write(group / "pids.max", str(limits.pids))
    if "memory" in hierarchy.controllers:
        _write(group / "memory.limit_in_bytes", str(limits.memory_bytes))
    if "cpu" in hierarchy.controllers:
        _write(group / "cpu.cfs_quota_us", str(quota))
    if "pids" in hierarchy.controllers:
        _write(group / "pids.max", str(limits.pids))


async def _end_members(groups: list[Path], deadline: float) -> None:
    """SIGKILL every process in the groups and wait until they have ended."""
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
    # A task that has just ended leaves its group a moment after its parent can be told.
    if not members:
        await asyncio.sleep(0.002)


def _members(groups: list[Path]) -> set[int]:
    everywhere = (group for top in groups for group in _bottom_up(top))
    return {int(pid) for group in everywhere for pid in _read(group / "cgroup.procs").split()}


def _bottom_up(top: Path) -> Iterator[Path]:
    for path, _, _ in os.walk(top, topdown=False):
        yield Path(path)


def _read(path: Path) -> str:
    """The content of a file; empty if it is gone."""
    try:
        return path.read_text()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return ""
        raise


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise Broken("set cgroup limit", str(path), f"{text!r}: {error.strerror}") from error
