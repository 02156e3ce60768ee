"""Consoles of zones, as xenconsoled logs them (``--log=guest``)."""

from __future__ import annotations

import os
from pathlib import Path


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

    def forget(self, name: str) -> None:
        """Remove the log of a zone that is gone: names are not used again, so nobody else would."""
        self._log(name).unlink(missing_ok=True)

    def _log(self, name: str) -> Path:
        return self._directory / f"guest-{name.replace('/', '_')}.log"
