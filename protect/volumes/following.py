"""Volumes that follow the host: what it mounts later gets the volume's attributes before a zone can see it.

A mount that is received by propagation comes with the flags that it has on the host.  So what a zone sees of
such a volume receives nothing.  A copy that does, the stage, is in another namespace, in no zone's reach.
When it changes, each new mount there is copied, set right while the copy is attached nowhere, and then
attached to the zone's; each one that is gone is taken away.  Both namespaces tell what is to be done, so that
nothing has to be remembered: after a restart the look is the same.

Nothing here asks a file server.  The places of mounts are found in what the kernel knows (RESOLVE_CACHED),
but below file systems of this host's own.  A tenant who renames directories while the host mounts there may
have a mount appear elsewhere in the same volume.

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
"""Kinds of file systems that no server can hold, so that they may be asked."""
MOST = 4096
"""Mounts of all of a zone's volumes, beyond which no more are added."""
_ROUNDS = 16
"""Of mounts that lie on each other, how many layers one look adds."""
_PIECE = 1 << 16
# Gone, hidden below another mount, not to be copied, or not known without asking: there will be another look.
_PASSING = (errno.ENOENT, errno.EAGAIN, errno.EINVAL, errno.ELOOP, errno.ENOTDIR, errno.EXDEV, errno.EBUSY)


class _Side(NamedTuple):
    """A namespace, and its mounts by number, with those on each."""

    namespace: Path
    known: dict[int, Mount]
    on: dict[int, list[Mount]]


class Following:
    """The volumes of one zone; all methods block, for a short time.  ``close`` it."""

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
        """Also while ``sync`` runs, in a thread that nobody waits for any more: it is closed at its end."""
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
        """Bring what the zone sees to what the stage has now; OSError for what nobody expects."""
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
        """One mount and its copy: whether anything was done to what is on them."""
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
            if len(zone.known) < MOST:
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
        """Whether it is there now: it may be hidden below another one."""
        with ExitStack() as opened:
            source = _find(stage, tops[0], mount, mount.parent, opened)
            if mountinfo.number_of(source) != mount.number:
                return False
            place = _find(zone, tops[1], mount, below.number, opened)
            if mountinfo.number_of(place) != below.number:
                return False
            tree = mountspace.inside(stage.namespace, lambda: mounts.clone(source, recursive=False))
            opened.callback(os.close, tree)
            # All at once: from here on it gives no more than the volume does, and receives nothing.
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
    """All of it; changes meanwhile are told, and looked at again."""
    pieces: list[bytes] = []
    at = 0
    while piece := os.pread(listing, _PIECE, at):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces).decode(errors="surrogateescape")


def _tops(stage: _Side, zone: _Side) -> Iterator[tuple[Mount, Mount]]:
    """The volumes that both have, ``/<workload>/<name>``: of several mounts at a place the lowest."""
    mine, its = (
        {each.place: each for each in reversed(side.known.values()) if each.place.count("/") == 2}
        for side in (stage, zone)
    )
    return ((mine[place], its[place]) for place in mine.keys() & its.keys())


def _find(side: _Side, top: Mount, mount: Mount, parent: int, opened: ExitStack) -> int:
    """A descriptor of what is at a mount's place below a volume's top."""
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
    """A mount and those below it, down to the volume's top."""
    found: list[Mount] = []
    with suppress(KeyError):
        while True:
            found.append(side.known[number])
            if number == top.number:
                break
            number = side.known[number].parent
    return found
