"""The control groups of the process itself, and a memory limit for child processes.

Sources: cgroups(7), Documentation/admin-guide/cgroup-v2.rst, systemd CGROUP_DELEGATION.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from daemonkit.host import mountinfo


def own_groups(proc: Path = Path("/proc/self")) -> Iterator[Path]:
    """The directories of the process's groups: one of version 2, and all of version 1."""
    places: dict[frozenset[str], Path] = {}
    for mount in mountinfo.read_mountinfo(proc / "mountinfo"):
        if mount.kind in ("cgroup", "cgroup2"):
            # The name of the hierarchy in /proc/self/cgroup: its controllers, or nothing.
            named = frozenset[str]() if mount.kind == "cgroup2" else mount.options
            places.setdefault(named - {"rw", "ro", "xattr"}, Path(mount.place))
    for line in (proc / "cgroup").read_text(errors="surrogateescape").splitlines():
        _, controllers, group = line.split(":", 2)
        place = places.get(frozenset(controllers.split(",")) - {""})
        if place is not None:
            yield place / group.lstrip("/")


def hold_memory(pid: int, name: str, most: int) -> bool:
    """Put a process into a group with this name and memory limit in bytes; False: no suitable group.

    Version 1: makes the group in the process's own group, if delegated or named like a delegated group.
    Version 2: a group with processes, like the daemon's, cannot have limits below; the daemon's own limit
    covers the process. OSError: the kernel refuses.
    """
    groups = tuple(own_groups())
    names = {group.name for group in groups if delegated(group)}
    for group in groups:
        if group.name in names and (group / "memory.limit_in_bytes").exists():
            made = group / name
            made.mkdir(exist_ok=True)
            (made / "memory.limit_in_bytes").write_text(str(most))
            (made / "cgroup.procs").write_text(str(pid))
            return True
    return False


def delegated(group: Path) -> bool:
    """Whether a manager, for example systemd, has delegated the group to the process."""
    for name in ("trusted.delegate", "user.delegate"):
        with suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False
