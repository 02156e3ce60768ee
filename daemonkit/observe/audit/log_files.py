"""The files of an audit log: ``audit.log`` for new entries, ``audit.log.1`` before it, and so on.

``audit.head`` has the last link and the number of the oldest kept entry, to reveal a cut at either end. The
head is written after the entries are on disk, and therefore never runs ahead of the entries.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Broken
from daemonkit.observe.audit.chain import LINE_BYTES, ChainLink, Verified, read_line, verify

NAME = "audit.log"
HEAD = "audit.head"


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain, and its oldest kept entry."""

    link: ChainLink = ChainLink()
    first: int = 1

    def write(self, folder: Path) -> None:
        """Replace the file atomically."""
        said = {"seq": self.link.seq, "hash": self.link.hash, "first": self.first}
        fresh = folder / f"{HEAD}.new"
        fresh.write_text(json.dumps(said) + "\n")
        fresh.chmod(0o600)
        fresh.replace(folder / HEAD)

    @staticmethod
    def read(folder: Path) -> Head | None:
        """The head; None: no file.  Broken: the file cannot be read."""
        try:
            said = json.loads((folder / HEAD).read_text())
            return Head(ChainLink(int(said["seq"]), str(said["hash"])), int(said["first"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Broken("read", str(folder / HEAD), str(error) or type(error).__name__) from error


class AuditFiles:
    """Writes the files of a log; all calls come from one thread."""

    def __init__(self, folder: Path, size: int, count: int) -> None:
        """``size``: bytes after which a file is rotated; ``count``: number of files to keep.

        Broken: the folder is unusable, or its files cannot be read.
        """
        self._folder, self._size, self._count = folder, size, count
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path = folder / NAME
            head = Head.read(folder)
            last = _last_link(self._path) or _last_link(folder / f"{NAME}.1")
            # Missing entries at the end appear as a gap before the next entry.
            ahead = head is not None and (last is None or last.seq < head.link.seq)
            self.link = head.link if head is not None and ahead else last or ChainLink()
            self._first = head.first if head is not None else _first(self._paths()) or 1
            self._file = _open(self._path)
        except OSError as error:
            raise Broken("open audit log", str(folder), error.strerror or str(error)) from error

    def append(self, entries: Iterable[dict[str, object]]) -> None:
        """Write entries and sync; OSError: the entries may be missing."""
        link, lines = self.link, []
        for entry in entries:
            link, line = link.follow(entry)
            lines.append(line)
        before = os.fstat(self._file).st_size
        try:
            _write_all(self._file, b"".join(lines))
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, before)
            raise
        self.link = link
        if os.fstat(self._file).st_size >= self._size:
            self._rotate()
        Head(self.link, self._first).write(self._folder)

    def close(self) -> None:
        os.close(self._file)

    def _rotate(self) -> None:
        os.close(self._file)
        for number in range(self._count - 1, 0, -1):
            older = self._folder / f"{NAME}.{number - 1}" if number > 1 else self._path
            if older.exists():
                older.replace(self._folder / f"{NAME}.{number}")
        self._file = _open(self._path)
        self._first = _first(self._paths()) or self._first

    def _paths(self) -> list[Path]:
        return paths(self._folder)


def paths(folder: Path) -> list[Path]:
    """The files of a log, the oldest first."""
    numbered = [(int(p.suffix[1:]), p) for p in folder.glob(f"{NAME}.*") if p.suffix[1:].isdecimal()]
    found = [path for _, path in sorted(numbered, reverse=True)]
    return [*found, folder / NAME] if (folder / NAME).exists() else found


def verify_folder(folder: Path, anchor: ChainLink | None = None) -> Verified:
    """Check all files of a log against each other and against the head."""
    found = verify(_lines(paths(folder)), anchor)
    try:
        head = Head.read(folder)
    except Broken as error:
        found.wrong.append(str(error))
        return found
    if head is None:
        if found.entries:
            found.wrong.append(f"{HEAD} is missing: what was cut off the end cannot be seen")
        return found
    if found.last.seq < head.link.seq:
        found.wrong.append(f"entries {found.last.seq + 1} to {head.link.seq} are missing at the end")
    if found.entries and found.first > head.first:
        found.wrong.append(f"entries {head.first} to {found.first - 1} are missing at the beginning")
    return found


def _lines(files: list[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as file:
            while line := file.readline(4 * LINE_BYTES):
                yield line


def _open(path: Path) -> int:
    """Open a file to append to; cuts off a final half line from a killed daemon."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    size = os.fstat(file).st_size
    tail = os.pread(file, 4 * LINE_BYTES, max(0, size - 4 * LINE_BYTES))
    if tail and not tail.endswith(b"\n"):
        os.ftruncate(file, size - len(tail) + tail.rfind(b"\n") + 1)
    return file


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _last_link(path: Path) -> ChainLink | None:
    """The last whole line's link; None: no such line."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4 * LINE_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            return read_line(line).link
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return None


def _first(files: list[Path]) -> int:
    """The number of the oldest entry; 0: no entry."""
    for line in _lines(files):
        try:
            return read_line(line.rstrip(b"\n")).link.seq
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return 0
