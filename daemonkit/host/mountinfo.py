"""The mounts of the calling thread (proc(5): /proc/<pid>/mountinfo, /proc/<pid>/fdinfo)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_SELF = Path("/proc/thread-self")
LOCAL = frozenset(
    "bcachefs btrfs erofs ext2 ext3 ext4 f2fs jfs overlay ramfs reiserfs rootfs tmpfs xfs zfs".split()
)
"""File systems without a file server."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo.

    ``root`` is the mounted part of the file system, ``place`` its path below the reader's root directory;
    ``device`` is ``<major>:<minor>``.  ``options`` are the file system's own.  ``tells``: mounts and unmounts
    below propagate to copies, because the mount is shared or a slave.  ``unbindable``: copies of the parent
    leave the mount out. ``readonly``: no writes through this mount.
    """

    number: int
    parent: int
    device: str
    root: str
    place: str
    kind: str
    options: frozenset[str]
    tells: bool
    unbindable: bool
    readonly: bool


def read_mountinfo(file: Path) -> list[Mount]:
    """The mounts in a mountinfo file, in order: of two mounts at one place the last is on top."""
    return parsed(file.read_text(errors="surrogateescape"))


def parsed(text: str) -> list[Mount]:
    """The mounts in a mountinfo text."""
    return [_parsed(line) for line in text.split("\n") if line]


def mounts(proc: Path = _SELF) -> Mapping[int, Mount]:
    """All mounts of a process or thread, by number."""
    return {mount.number: mount for mount in read_mountinfo(proc / "mountinfo")}


def number_of(descriptor: int) -> int:
    """The number of the mount of an open file."""
    for line in (_SELF / "fdinfo" / str(descriptor)).read_text().splitlines():
        if line.startswith("mnt_id:"):
            return int(line.split()[1])
    raise OSError(f"descriptor {descriptor} is in no mount")


def below(known: Mapping[int, Mount], top: int) -> Iterator[Mount]:
    """The mounts below ``top``, at any depth."""
    children: dict[int, list[Mount]] = {}
    for mount in known.values():
        children.setdefault(mount.parent, []).append(mount)
    waiting = [top]
    while waiting:
        for mount in children.pop(waiting.pop(), ()):
            waiting.append(mount.number)
            yield mount


def highest(known: Mapping[int, Mount], top: int, wanted: Callable[[Mount], bool]) -> Iterator[Mount]:
    """The wanted mounts of ``below`` without a wanted mount above."""
    found: set[int] = set()
    # A mount comes after its parent.
    for mount in below(known, top):
        if mount.parent in found:
            found.add(mount.number)
        elif wanted(mount):
            found.add(mount.number)
            yield mount


def _parsed(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    number, parent, device, root, place, flags, *optional = before.split(" ")
    kind, _, options = after.split(" ")[:3]  # in between: the source, possibly empty
    return Mount(
        number=int(number),
        parent=int(parent),
        device=device,
        root=_plain(root),
        place=_plain(place),
        kind=kind,
        options=frozenset(options.split(",")),
        tells=any(each.startswith(("shared:", "master:")) for each in optional),
        unbindable="unbindable" in optional,
        readonly="ro" in flags.split(","),
    )


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)
