"""Logs of zones in dom0: their consoles, by xenconsoled (``--log=guest``)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

_LONGEST_BYTES = 1 << 20
_KEPT_BYTES = 256 << 10
_TRIM_SECONDS = 30.0


class GuestLogs:
    """``guest-<name>.log`` in xenconsoled's directory.

    The guest writes the content.  No other program bounds or removes the logs.
    """

    def __init__(self, consoles: Path) -> None:
        self._consoles = consoles

    def notices(self) -> tuple[str, ...]:
        """A notice for the operator if no console logs are kept."""
        if self._consoles.is_dir():
            return ()
        return (f"consoles of zones are not kept: no {self._consoles} (run xenconsoled with --log=guest)",)

    def console(self, name: str) -> Path:
        """The log of a zone (untrusted); it may not exist."""
        return self._consoles / f"guest-{name.replace('/', '_')}.log"

    def trim(self, names: Iterable[str]) -> None:
        """Cut long logs down to their newest part."""
        for name in names:
            with suppress(FileNotFoundError):
                _trim(self.console(name))

    async def trim_for_ever(self, names: Callable[[], Iterable[str]]) -> None:
        """Trim the domains' logs periodically: xenconsoled writes at most 300 KB/s."""
        while True:
            await asyncio.sleep(_TRIM_SECONDS)
            await asyncio.to_thread(self.trim, names())

    def forget(self, name: str) -> None:
        """Remove the logs of a deleted zone; names are not reused, and nothing else would remove the logs."""
        self.console(name).unlink(missing_ok=True)


def _trim(log: Path) -> None:
    # All writers append: concurrent output lands before the tail, and is not lost.
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size > _LONGEST_BYTES:
            with log.open("rb") as file:
                file.seek(-_KEPT_BYTES, os.SEEK_END)
                tail = file.read(_KEPT_BYTES)
            os.truncate(fd, 0)
            os.write(fd, tail)
    finally:
        os.close(fd)
