"""Volumes that follow the host: later mounts of the host get the volume's attributes before a zone sees them.

A propagated mount has the host's flags.  Therefore the zone's mounts of such a volume receive nothing.  The
stage, a copy in another namespace out of every zone's reach, receives the host's mounts.  When it changes,
each new mount is copied, given its attributes while detached, and then attached to the zone's volume;
vanished mounts are unmounted.  Both namespaces together hold the whole state: after a restart the comparison
is the same.

No step asks a file server.  The mount points are found in the kernel's cache (RESOLVE_CACHED), except below
local file systems of this host.  A tenant who renames directories while the host mounts in them may make a
mount appear elsewhere in the same volume.

Sources: mount_namespaces(7), proc(5) mountinfo, openat2(2).
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from daemonkit.host import mountinfo
from daemonkit.host.mountinfo import Mount
from protect.host import mounts, mountspace
from protect.volumes.area import Area
from protect.volumes.source import COMMANDING, attributes

log = logging.getLogger(__name__)

LOCAL = frozenset("bcachefs btrfs erofs ext2 ext3 ext4 f2fs overlay ramfs squashfs tmpfs xfs zfs".split())
"""Local file systems: no server can block a lookup in them."""
MOST_MOUNTS = 4096
"""Limit of mounts in all volumes of a zone; no more are added."""
_ROUNDS = 16
"""Layers of stacked mounts that one look adds."""
_PIECE_BYTES = 1 << 16
# Gone, hidden below another mount, unbindable, or not in the cache: a later look tries again.
_PASSING = (errno.ENOENT, errno.EAGAIN, errno.EINVAL, errno.ELOOP, errno.ENOTDIR, errno.EXDEV, errno.EBUSY)


class _Side(NamedTuple):
    """A namespace, its mounts by number, and the mounts on each."""

    namespace: Path
    known: dict[int, Mount]
    on: dict[int, list[Mount]]


class Following:
    """The volumes of one zone; all methods block for a short time.  Call ``close`` at the end."""

    def __init__(self, area: Area) -> None:
        self._area = area
        self._lock = threading.Lock()
        self._ended = self._closed = False
        with ExitStack() as stack:
            self.changes = mountspace.listing(area.stage)
            stack.callback(os.close, self.changes)
            self._zone = mountspace.listing(area.namespace)
            stack.pop_all()

    def close(self) -> None:
        """Close, even while ``sync`` runs in an abandoned thread: then ``sync`` closes at its end."""
        self._ended = True
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._closed:
                os.close(self.changes)
                os.close(self._zone)
            self._closed = True
        finally:
            self._lock.release()

    def sync(self) -> None:
        """Make the zone's mounts equal to the stage's; OSError for unexpected errors."""
        try:
            with self._lock:
                if not self._closed:
                    self._sync()
        finally:
            if self._ended:
                self.close()

    def _sync(self) -> None:
        for _ in range(_ROUNDS):
            stage = _side(self._area.stage, self.changes)
            zone = _side(self._area.namespace, self._zone)
            done = False
            for mine, its in _tops(stage, zone):
                done = self._match(stage, zone, (mine, its), (mine, its)) or done
            if not done:
                return

    def _match(self, stage: _Side, zone: _Side, tops: tuple[Mount, Mount], pair: tuple[Mount, Mount]) -> bool:
        """Compare the mounts on one mount and on its copy; returns whether anything changed."""
        missing: list[Mount] = []
        there = list(zone.on.get(pair[1].number, ()))
        done = False
        for mount in stage.on.get(pair[0].number, ()):
            if mount.kind in COMMANDING or mount.place == tops[0].place:
                continue
            same = next((each for each in there if _identity(each) == _identity(mount)), None)
            if same is None:
                missing.append(mount)
                continue
            there.remove(same)
            done = self._match(stage, zone, tops, (mount, same)) or done
        for gone in there:
            done = self._try(gone, partial(self._remove, zone, tops[1], gone)) or done
        for mount in missing:
            if len(zone.known) < MOST_MOUNTS:
                done = self._try(mount, partial(self._add, stage, zone, tops, mount, pair[1])) or done
        return done

    def _try(self, mount: Mount, work: Callable[[], bool]) -> bool:
        try:
            return work()
        except OSError as error:
            if error.errno not in _PASSING:
                log.warning("a mount does not follow the host: %s: %s", mount.place, error)
            return False

    def _add(self, stage: _Side, zone: _Side, tops: tuple[Mount, Mount], mount: Mount, below: Mount) -> bool:
        """Add a mount; False if its place cannot be reached now: another mount may hide it."""
        with ExitStack() as opened:
            source = _find(stage, tops[0], mount, mount.parent, opened)
            if mountinfo.number_of(source) != mount.number:
                return False
            place = _find(zone, tops[1], mount, below.number, opened)
            if mountinfo.number_of(place) != below.number:
                return False
            tree = mountspace.inside(stage.namespace, lambda: mounts.clone(source, recursive=False))
            opened.callback(os.close, tree)
            # In one call: from here on the tree grants no more than the volume, and receives nothing.
            wanted = attributes(readonly=tops[1].readonly)
            mounts.change(tree, add=wanted, propagation=mounts.MS_PRIVATE, recursive=True)
            mountspace.inside(zone.namespace, lambda: mounts.attach_at(tree, place))
        return True

    def _remove(self, zone: _Side, top: Mount, mount: Mount) -> bool:
        with ExitStack() as opened:
            place = _find(zone, top, mount, mount.parent, opened)
            if mountinfo.number_of(place) != mount.number:
                return False
            mountspace.inside(zone.namespace, lambda: mounts.unmount_at(place))
        return True


def _identity(mount: Mount) -> tuple[str, str, str]:
    return mount.place, mount.device, mount.root


def _side(namespace: Path, listing: int) -> _Side:
    known = {mount.number: mount for mount in mountinfo.parsed(_text(listing))}
    on: dict[int, list[Mount]] = {}
    for mount in known.values():
        on.setdefault(mount.parent, []).append(mount)
    return _Side(namespace, known, on)


def _text(listing: int) -> str:
    """The whole listing; changes during the read are reported, and read again."""
    pieces: list[bytes] = []
    at = 0
    while piece := os.pread(listing, _PIECE_BYTES, at):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces).decode(errors="surrogateescape")


def _tops(stage: _Side, zone: _Side) -> Iterator[tuple[Mount, Mount]]:
    """The volumes in both, ``/<workload>/<name>``: of stacked mounts the lowest."""
    mine, its = (
        {each.place: each for each in reversed(side.known.values()) if each.place.count("/") == 2}
        for side in (stage, zone)
    )
    return ((mine[place], its[place]) for place in mine.keys() & its.keys())


def _find(side: _Side, top: Mount, mount: Mount, parent: int, opened: ExitStack) -> int:
    """A descriptor of the topmost mount or file at a mount's place below a volume's top."""
    path = os.path.relpath(mount.place, top.place)
    ask = all(each.kind in LOCAL for each in _upward(side, parent, top))

    def find() -> int:
        whole = os.open(top.place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return mounts.found_below(whole, path, ask=ask)
        finally:
            os.close(whole)

    found = mountspace.inside(side.namespace, find)
    opened.callback(os.close, found)
    return found


def _upward(side: _Side, number: int, top: Mount) -> Sequence[Mount]:
    """A mount and its ancestors, up to the volume's top."""
    found: list[Mount] = []
    with suppress(KeyError):
        while True:
            found.append(side.known[number])
            if number == top.number:
                break
            number = side.known[number].parent
    return found
