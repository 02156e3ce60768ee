"""Appends to a log file, each noted in the journal first: in the file exactly once, even if we are killed.

    journal.begin -> write(2), O_APPEND -> journal.commit

After a restart an append under way is accepted if the file is long enough for it (no other process appends);
otherwise its partial bytes are cut off.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from daemonkit.faults import Refused
from daemonkit.host.host_calls import open_plain
from protect.stdio.journal import Append, Journal, Position

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT
MODE = 0o640


def _no_step(name: str) -> None:
    """The default ``step``: does nothing."""


class LogFile:
    """A log file and its journal.  Two threads must not use it at once."""

    def __init__(self, path: str, journal: Journal, step: Callable[[str], None] = _no_step) -> None:
        """``step`` is called with each step's name at its end."""
        self._path = path
        self._journal = journal
        self._step = step
        self._fd = -1

    @property
    def position(self) -> Position:
        """The position of the output that is in the file for good."""
        return self._journal.position

    @property
    def wanting(self) -> bool:
        """Whether the file must be found before the next append, or an append be finished."""
        return self._fd < 0

    @property
    def unfinished(self) -> bool:
        """Whether an append is unfinished: an earlier process began it, or it failed."""
        return self._journal.pending is not None

    def find(self) -> int:
        """Finish an unfinished append, then open the file now at the path: a descriptor, for ``use``.

        The file is created, its directory is not.  The path's file system may block the call; OSError.
        """
        self._finish_pending()
        return open_plain(self._path, _FLAGS, MODE)

    def use(self, descriptor: int) -> None:
        """Use this file from now on."""
        before, self._fd = self._fd, descriptor
        if before >= 0:
            os.close(before)
        self._step("opened" if before < 0 else "reopened")

    def append(self, batch: bytes, position: Position) -> None:
        """Append the whole batch and note the new position, or (OSError) neither."""
        self._finish_pending()
        state = os.fstat(self._fd)
        append = Append(state.st_dev, state.st_ino, state.st_size, len(batch), position)
        self._journal.begin(append)
        self._step("noted")
        try:
            self._write(batch)
        except OSError:
            self._finish_pending()
            raise
        self._step("written")
        self._journal.commit()
        self._step("committed")

    def advance(self, position: Position) -> None:
        """Note a new position without a line.  OSError: an unfinished append cannot be finished."""
        self._finish_pending()
        self._journal.advance(position)
        self._step("advanced")

    def close(self) -> None:
        """Close the file and the journal; the journal keeps the position."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._journal.close()

    def _write(self, batch: bytes) -> None:
        rest = memoryview(batch)
        while rest:
            # A short write means a full disk or a limit: the next write raises the error.
            rest = rest[os.write(self._fd, rest) :]

    def _finish_pending(self) -> None:
        """Accept an unfinished append, or cut it off."""
        append = self._journal.pending
        if append is None:
            return
        fd = self._find(append)
        try:
            size = os.fstat(fd).st_size if fd >= 0 else 0
            if size >= append.size + append.length:
                self._journal.commit()
                return
            if size > append.size:
                os.ftruncate(fd, append.size)
                self._step("cut")
        finally:
            if fd >= 0:
                os.close(fd)
        self._journal.abort()
        self._step("settled")

    def _find(self, append: Append) -> int:
        """The file of the append, open for writing; -1 if it is gone.

        The kubelet rotates by renaming within the directory: ``0.log`` becomes ``0.log.<time>``.
        """
        if self._fd >= 0:
            return os.dup(self._fd)
        path = Path(self._path)
        names = [path.name]
        if path.parent.is_dir():
            names += [n for n in os.listdir(path.parent) if n.startswith(f"{path.name}.")]
        for name in names:
            try:
                fd = open_plain(path.parent / name, os.O_WRONLY)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EINVAL, errno.EISDIR):
                    raise
                continue
            state = os.fstat(fd)
            if (state.st_dev, state.st_ino) == (append.device, append.inode):
                return fd
            os.close(fd)
        return -1


class NoFile:
    """The log of a workload without a log file: only the position is kept."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        if journal.pending is not None:
            journal.abort()

    @property
    def position(self) -> Position:
        return self._journal.position

    wanting = unfinished = False

    def find(self) -> int:
        raise Refused("reopen", "log", "the workload has no log file")

    def use(self, descriptor: int) -> None:
        """Do nothing: no file is ever found."""

    def append(self, batch: bytes, position: Position) -> None:
        """Drop the lines."""
        self._journal.advance(position)

    def advance(self, position: Position) -> None:
        self._journal.advance(position)

    def close(self) -> None:
        self._journal.close()
