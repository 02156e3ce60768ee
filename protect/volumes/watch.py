"""Watches of files and directories of the host (inotify(7)), one instance for the daemon.

A watch is put on an open file: no path is looked up.  A change may be reported several times; the listener
finds the changed file.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable

from daemonkit.host import inotify

_ATTRIB, _CLOSE_WRITE, _MOVED_TO, _CREATE, _DELETE, _MOVE_SELF = 0x4, 0x8, 0x80, 0x100, 0x200, 0x800
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_MASK = _ATTRIB | _CLOSE_WRITE | _MOVED_TO | _CREATE | _DELETE | _MOVE_SELF
_HEAD = struct.Struct("=iIII")
_READ_BYTES = 64 * 1024
_DATA = b"..data"


class HostWatch:
    """``protect.model.copied_files.FileWatch``."""

    def __init__(self, watches: FileWatches, number: int, changed: Callable[[], None]) -> None:
        self._watches = watches
        self.number = number
        self.changed = changed
        self.alive = True

    def close(self) -> None:
        """End the watch; may be repeated."""
        if self.alive:
            self.alive = False
            self._watches.drop(self)


class FileWatches:
    """All watches.  The instance is created with the first watch; its methods run in the loop."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._by_number: dict[int, set[HostWatch]] = {}

    def add(self, place: int, changed: Callable[[], None]) -> HostWatch:
        """Watch an open file.  OSError: ENOSPC if the user's limit of watches is reached."""
        if self._descriptor < 0:
            self._descriptor = inotify.new_instance()
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        number = inotify.add_watch(self._descriptor, b"/proc/self/fd/%d" % place, _MASK)
        watch = HostWatch(self, number, changed)
        # inotify returns the same number for every watch of a directory.
        self._by_number.setdefault(number, set()).add(watch)
        return watch

    def drop(self, watch: HostWatch) -> None:
        """End a watch; the last watch of a number ends the kernel's watch."""
        others = self._by_number.get(watch.number)
        if others is None:
            return
        others.discard(watch)
        if not others:
            del self._by_number[watch.number]
            inotify.libc.inotify_rm_watch(self._descriptor, watch.number)  # EINVAL: the kernel has ended it

    def close(self) -> None:
        """End all watches."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        for watches in self._by_number.values():
            for watch in watches:
                watch.alive = False
        self._by_number.clear()

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        at = 0
        changed: set[int] = set()
        while at < len(data):
            number, mask, _, length = _HEAD.unpack_from(data, at)
            name = data[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0")
            at += _HEAD.size + length
            if mask & _OVERFLOW:
                changed.update(self._by_number)
            elif mask & _IGNORED:
                self._end(number)
            # Files of an unfinished version do not count before the link to them changes.
            elif name == _DATA or not name.startswith(b".."):
                changed.add(number)
        for number in changed:
            self._tell(number)

    def _tell(self, number: int) -> None:
        for watch in tuple(self._by_number.get(number, ())):
            watch.changed()

    def _end(self, number: int) -> None:
        """Report the end of a watch: its file was deleted, or unmounted."""
        for watch in self._by_number.pop(number, ()):
            watch.alive = False
            watch.changed()
