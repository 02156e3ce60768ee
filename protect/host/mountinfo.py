"""The mounts that the calling thread sees (proc(5): /proc/<pid>/mountinfo, /proc/<pid>/fdinfo)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_SELF = Path("/proc/thread-self")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo.

    ``place`` is where it is mounted, as the thread's root directory has it.  ``tells``: mounts and unmounts
    below it are told to copies of it, because it is shared or a slave.  ``unbindable``: it is left out of
    copies of what is above it.
    """

    number: int
    parent: int
    place: Path
    kind: str
    tells: bool
    unbindable: bool


def mounts(proc: Path = _SELF) -> Mapping[int, Mount]:
    """All mounts that a process or thread sees, by their number."""
    lines = (proc / "mountinfo").read_bytes().splitlines()
    return {mount.number: mount for mount in map(_parsed, lines)}


def number_of(descriptor: int) -> int:
    """The number of the mount that an open file is in."""
    for line in (_SELF / "fdinfo" / str(descriptor)).read_text().splitlines():
        if line.startswith("mnt_id:"):
            return int(line.split()[1])
    raise OSError(f"descriptor {descriptor} is in no mount")


def below(known: Mapping[int, Mount], top: int) -> Iterator[Mount]:
    """The mounts on ``top``, and those on them."""
    children: dict[int, list[Mount]] = {}
    for mount in known.values():
        children.setdefault(mount.parent, []).append(mount)
    waiting = [top]
    while waiting:
        for mount in children.pop(waiting.pop(), ()):
            waiting.append(mount.number)
            yield mount


def highest(known: Mapping[int, Mount], top: int, wanted: Callable[[Mount], bool]) -> Iterator[Mount]:
    """Those of ``below`` that are wanted, and have no wanted one above them."""
    found: set[int] = set()
    # A mount comes after the one that it is on.
    for mount in below(known, top):
        if mount.parent in found:
            found.add(mount.number)
        elif wanted(mount):
            found.add(mount.number)
            yield mount


def _parsed(line: bytes) -> Mount:
    fields = line.split(b" ")
    end = fields.index(b"-", 6)
    return Mount(
        number=int(fields[0]),
        parent=int(fields[1]),
        place=Path(fields[4].decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")),
        kind=fields[end + 1].decode(errors="replace"),
        tells=any(each.startswith((b"shared:", b"master:")) for each in fields[6:end]),
        unbindable=b"unbindable" in fields[6:end],
    )
