"""Reads a container's log in CRI's format.  Rotation renames the file and makes a new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_LINE_BYTES = 1 << 20
"""Maximum bytes of a line of a log; CRI cuts lines at 16 KiB and marks the cut ("P")."""


@dataclass(frozen=True, slots=True, order=True)
class LogLine:
    """A line; ``time`` is RFC 3339 in UTC: texts sort like times."""

    time: str
    container: str
    stream: str
    text: str


class LogReader:
    """Reads one container's log, each time from the last position.  Starts with the present file."""

    def __init__(self, path: Path, container: str) -> None:
        self._path = path
        self._container = container
        self._file: BinaryIO | None = None
        self._begun = b""
        self._parts: dict[str, list[str]] = {}

    def lines(self) -> Iterator[LogLine]:
        """The complete lines (``TIME STREAM TAGS TEXT``) since the last call.  Malformed lines are skipped.

        Lines cut by CRI are joined.  FileNotFoundError: the log has never existed.
        """
        if self._file is None:
            self._file = self._path.open("rb")
        yield from self._rest()
        while self._renewed():
            yield from self._rest()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _rest(self) -> Iterator[LogLine]:
        assert self._file is not None
        while piece := self._file.readline(_LINE_BYTES):
            self._begun += piece
            if not piece.endswith(b"\n") and len(self._begun) < _LINE_BYTES:
                return  # its end is not written yet
            text, self._begun = self._begun, b""
            if (line := self._line(text)) is not None:
                yield line

    def _line(self, untrusted: bytes) -> LogLine | None:
        words = untrusted.decode(errors="replace").rstrip("\n").split(" ", 3)
        if len(words) != 4:
            return None
        time, stream, tags, text = words
        self._parts.setdefault(stream, []).append(text)
        if tags.split(":")[0] == "P":
            return None
        return LogLine(time, self._container, stream, "".join(self._parts.pop(stream)))

    def _renewed(self) -> bool:
        """Open the new file if the log was rotated; returns whether it was."""
        assert self._file is not None
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        if os.path.samestat(there, os.fstat(self._file.fileno())):
            return False
        self._file.close()
        self._file, self._begun = self._path.open("rb"), b""
        return True
