"""The journal of a log: the amount of output in the file, in a memory-mapped note that survives SIGKILL.

    byte 0..7    magic
    byte 8       state: number of the current slot (0 or 1), +2 while an append to the file is under way
    byte 64, 192 the two slots

A slot is written completely while the other slot is current; then one store to the state byte makes it
current.  A killed process's stores into a shared mapping persist in their order: at every instant either the
old or the new slot counts.  (A crash of the host needs no care: the zones, which produce the output, end with
it.)
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from daemonkit.faults import Broken

MAGIC = b"XPLOGJ1\n"
SIZE = 4096
_STATE = 8
_SLOTS = (64, 192)
_UNDER_WAY = 2
_RECORD = struct.Struct("<QQQQQQQ")
_SUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Position:
    """The consumed absolute offset of each stream; ``*_finished`` after its end is noted."""

    stdout: int = 0
    stderr: int = 0
    stdout_finished: bool = False
    stderr_finished: bool = False

    def advanced(self, stream: str, consumed: int, finished: bool = False) -> Position:
        """The position with one stream consumed up to ``consumed``."""
        if stream == "stdout":
            return replace(self, stdout=consumed, stdout_finished=finished)
        return replace(self, stderr=consumed, stderr_finished=finished)


@dataclass(frozen=True, slots=True)
class Append:
    """An append under way: ``length`` bytes to a file of ``size`` bytes, and the position after it."""

    device: int
    inode: int
    size: int
    length: int
    position: Position


class Journal:
    """One workload's journal, open."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.position = self._read(memory[_STATE] & 1).position
        if memory[_STATE] & _UNDER_WAY:
            self.pending: Append | None = self._read(memory[_STATE] & 1)
            self.position = self._read(1 - (memory[_STATE] & 1)).position
        else:
            self.pending = None

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open a journal, or create one at position 0.  OSError; Broken: not a journal."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            _create(path)
            fd = os.open(path, flags)
        try:
            if os.fstat(fd).st_size != SIZE:
                raise Broken("open", f"log journal {path}", "it is not a journal", "remove it")
            memory = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        if memory[: len(MAGIC)] != MAGIC or memory[_STATE] > 3:
            memory.close()
            raise Broken("open", f"log journal {path}", "it is not a journal", "remove it")
        return cls(memory)

    def begin(self, append: Append) -> None:
        """Note the append before its write."""
        slot = 1 - (self._memory[_STATE] & 1)
        self._write(slot, append)
        self._memory[_STATE] = slot | _UNDER_WAY
        self.pending = append

    def commit(self) -> None:
        """Note that the whole append is in the file."""
        assert self.pending is not None
        self._memory[_STATE] = self._memory[_STATE] & 1
        self.position, self.pending = self.pending.position, None

    def abort(self) -> None:
        """Note that no byte of the append is in the file."""
        self._memory[_STATE] = 1 - (self._memory[_STATE] & 1)
        self.pending = None

    def advance(self, position: Position) -> None:
        """Change the position without an append."""
        slot = 1 - (self._memory[_STATE] & 1)
        self._write(slot, Append(0, 0, 0, 0, position))
        self._memory[_STATE] = slot
        self.position = position

    def close(self) -> None:
        self._memory.close()

    def _write(self, slot: int, append: Append) -> None:
        record = _pack(append)
        self._memory[_SLOTS[slot] : _SLOTS[slot] + len(record)] = record

    def _read(self, slot: int) -> Append:
        at = _SLOTS[slot]
        record = self._memory[at : at + _RECORD.size]
        (checksum,) = _SUM.unpack(self._memory[at + _RECORD.size : at + _RECORD.size + _SUM.size])
        if zlib.crc32(record) != checksum:
            raise Broken("read", "log journal", "its record is damaged")
        device, inode, size, length, stdout, stderr, ends = _RECORD.unpack(record)
        return Append(device, inode, size, length, Position(stdout, stderr, bool(ends & 1), bool(ends & 2)))


def _pack(append: Append) -> bytes:
    position = append.position
    ends = position.stdout_finished | position.stderr_finished << 1
    record = _RECORD.pack(
        append.device, append.inode, append.size, append.length, position.stdout, position.stderr, ends
    )
    return record + _SUM.pack(zlib.crc32(record))


def _create(path: Path) -> None:
    """Make a journal at position 0, renamed to its name only when complete, with its disk space reserved (a
    store into a mapped page without disk space would raise SIGBUS).
    """
    draft = path.with_name(f".{path.name}.new")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        empty = _pack(Append(0, 0, 0, 0, Position()))
        content = bytearray(SIZE)
        content[: len(MAGIC)] = MAGIC
        for at in _SLOTS:
            content[at : at + len(empty)] = empty
        os.posix_fallocate(fd, 0, SIZE)
        os.pwrite(fd, content, 0)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
