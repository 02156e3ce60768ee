"""Control groups of file servers: ``xenpod-shares/<domain's uuid>``, with limits for memory and processes.

They are not below protectd's own group: a v2 group cannot have both processes and controllers for its
children.  The memory includes the host's cache of the zone's file reads and writes.

Sources: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst, systemd CGROUP_DELEGATION.md.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daemonkit.host import cgroups, mountinfo

log = logging.getLogger(__name__)

_NAME = "xenpod-shares"
_PROCESSES = 4
_PATIENCE_SECONDS = 2.0
"""Seconds within which the kernel frees a group after the end of its last process."""


@dataclass(frozen=True, slots=True)
class ServerGroups:
    """Groups of servers; each may use ``memory`` bytes.  All methods block for a short time."""

    memory: int

    def make(self, name: str) -> list[Path]:
        """Make the groups of a server.  Empty and logged if the kernel refuses: other limits still hold."""
        made = []
        try:
            for base, files in self._bases():
                group = base / _NAME / name
                group.parent.mkdir(exist_ok=True)
                if (group.parent / "cgroup.subtree_control").exists():
                    _enable(base)
                    _enable(group.parent)
                group.mkdir(exist_ok=True)
                for file, value in files.items():
                    (group / file).write_text(value)
                made.append(group)
        except OSError as error:
            log.warning("a file server gets no control group: %s", error)
            self.remove(name)
            return []
        return made

    def remove(self, name: str) -> None:
        """Remove the groups of a server; no process may be left in them."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for base, _ in self._bases():
            while True:
                try:
                    (base / _NAME / name).rmdir()
                except FileNotFoundError:
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        log.warning("a file server's control group stays: %s", error)
                        break
                    time.sleep(0.005)  # nothing reports the group's last exit
            with suppress(OSError):
                (base / _NAME).rmdir()

    def _bases(self) -> Iterator[tuple[Path, dict[str, str]]]:
        """The base directories of groups, each with the limits to write."""
        memory, processes = str(self.memory), str(_PROCESSES)
        second: Path | None = None
        first = False
        for mount in mountinfo.mounts().values():
            if mount.kind == "cgroup" and "memory" in mount.options:
                first = True
                yield Path(mount.place), {"memory.limit_in_bytes": memory}
            elif mount.kind == "cgroup" and "pids" in mount.options:
                yield Path(mount.place), {"pids.max": processes}
            elif mount.kind == "cgroup2":
                second = second or Path(mount.place)
        if second and not first:
            yield _delegated(second), {"memory.max": memory, "pids.max": processes}


def _delegated(mount: Path) -> Path:
    """The delegated group above ours, or the root."""
    for own in cgroups.own_groups():
        if mount in own.parents:
            for parent in own.parents:
                if parent == mount:
                    break
                if cgroups.delegated(parent):
                    return parent
    return mount


def _enable(group: Path) -> None:
    control = group / "cgroup.subtree_control"
    missing = {"memory", "pids"} - set(control.read_text().split())
    if missing:
        descriptor = os.open(control, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, " ".join(f"+{name}" for name in sorted(missing)).encode())
        finally:
            os.close(descriptor)
