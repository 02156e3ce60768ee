"""Consoles of zones, as xenconsoled logs them (``--log=guest``)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_LONGEST = 1 << 20
_KEPT = 256 << 10


class Consoles:
    """``guest-<name>.log`` files in xenconsoled's log directory; what is in them is the guest's."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def notices(self) -> tuple[str, ...]:
        """What the operator should know: whether there can be any log at all."""
        if self._directory.is_dir():
            return ()
        return (f"consoles of zones are not kept: no {self._directory} (run xenconsoled with --log=guest)",)

    def tail(self, name: str, limit: int) -> bytes:
        """The last ``limit`` bytes (untrusted); nothing when there is no log."""
        try:
            with self._log(name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - limit))
                return file.read(limit)
        except FileNotFoundError:
            return b""

    def trim(self, names: Iterable[str]) -> None:
        """Cut logs that are too long down to their newest part: xenconsoled never does."""
        for name in names:
            tail = self.tail(name, _KEPT)
            with suppress(FileNotFoundError):
                # Both append, so what xenconsoled writes meanwhile comes before the tail, and is not lost.
                fd = os.open(self._log(name), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                try:
                    if os.fstat(fd).st_size > _LONGEST:
                        os.truncate(fd, 0)
                        os.write(fd, tail)
                finally:
                    os.close(fd)

    def forget(self, name: str) -> None:
        """Remove the log of a zone that is gone: names are not used again, so nobody else would."""
        self._log(name).unlink(missing_ok=True)

    def _log(self, name: str) -> Path:
        return self._directory / f"guest-{name.replace('/', '_')}.log"
