"""The control group hierarchies of a host, and files in groups.

Sources: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst, systemd CGROUP_DELEGATION.md.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Broken, Unsupported
from daemonkit.host import mountinfo
from daemonkit.host.cgroups import delegated


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy; ``controllers`` is empty for the v2 hierarchy and named v1 ones."""

    base: Path
    controllers: frozenset[str]
    unified: bool


def find_hierarchies(proc: Path = Path("/proc/self")) -> tuple[Hierarchy, ...]:
    """The hierarchies to use on this host.  Unsupported: no hierarchy can limit memory."""
    first: list[Hierarchy] = []
    second: list[Hierarchy] = []
    for mount in mountinfo.read_mountinfo(proc / "mountinfo"):
        place = Path(mount.place)
        if mount.kind == "cgroup":
            # the options are mount flags and controllers ("rw,memory"), or name=... of a named hierarchy
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
    """The delegated group above the daemon, if a manager created one; else the root.

    The daemon's own group cannot be used: a group cannot have both members and controllers for children, and
    the manager could not start the daemon in the group again.
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


def read_control(path: Path) -> str:
    """Content of a group's file; empty if the group is gone."""
    try:
        return path.read_text()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return ""
        raise


def write_control(path: Path, text: str) -> None:
    """Set a limit; Broken: the kernel refuses."""
    try:
        path.write_text(text)
    except OSError as error:
        raise Broken("set cgroup limit", str(path), f"{text!r}: {error.strerror}") from error
