"""Follows a file that another process appends to, and that is cut down from its beginning now and then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from daemonkit.host import inotify
from daemonkit.tasks import race

_CHUNK = 64 << 10
_MOST = 4 << 20
"""Bytes before the end in which lines are looked for; more is not kept of a console."""
_MARK = 256
"""Bytes by which the place is found again after a cut."""


async def follow(path: Path, lines: int, ended: asyncio.Event | None) -> AsyncGenerator[bytes, None]:
    """Yield the last ``lines`` lines, 0 for all there is; then what is added, until ``ended``.

    None: no more than what there is.  FileNotFoundError: there is no such file.
    """
    descriptor = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        with inotify.changes(inotify.MODIFY, b"/proc/self/fd/%d" % descriptor) as changed:
            tail = _Tail(descriptor)
            await asyncio.to_thread(tail.begin, lines)
            while True:
                changed.clear()
                last = ended is None or ended.is_set()
                while data := await asyncio.to_thread(tail.read):
                    yield data
                if last or ended is None:
                    return
                await race(changed.wait(), ended.wait())
    finally:
        os.close(descriptor)


class _Tail:
    """The place in an open file up to which it has been read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._at = 0
        self._mark = b""

    def begin(self, lines: int) -> None:
        """Go to where the last lines begin."""
        size = os.fstat(self._descriptor).st_size
        start = max(0, size - _MOST)
        if lines:
            content = os.pread(self._descriptor, size - start, start).removesuffix(b"\n")
            at = len(content)
            while lines and at >= 0:
                at = content.rfind(b"\n", 0, at)
                lines -= 1
            start += at + 1
        self._at = start

    def read(self) -> bytes:
        """What has been added; empty if nothing has."""
        if os.fstat(self._descriptor).st_size < self._at:
            self._find()
        data = os.pread(self._descriptor, _CHUNK, self._at)
        self._at += len(data)
        self._mark = (self._mark + data)[-_MARK:]
        return data

    def _find(self) -> None:
        """Find the place again after a cut: behind what was read last, if that is still there."""
        content = os.pread(self._descriptor, _MOST, 0)
        found = content.rfind(self._mark) if self._mark else -1
        self._at = found + len(self._mark) if found >= 0 else 0
