"""Logs of zones in dom0: their consoles, by xenconsoled (``--log=guest``)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from protect.toolstack.console import read_tail

_LONGEST = 1 << 20
_KEPT = 256 << 10
_TRIM_SECONDS = 30.0


class GuestLogs:
    """``guest-<name>.log`` in xenconsoled's directory.

    What is in them is the guest's, and nobody else bounds or removes them.
    """

    def __init__(self, consoles: Path) -> None:
        self._consoles = consoles

    def notices(self) -> tuple[str, ...]:
        """A notice for the operator if there can be no console logs."""
        if self._consoles.is_dir():
            return ()
        return (f"consoles of zones are not kept: no {self._consoles} (run xenconsoled with --log=guest)",)

    async def console(self, name: str, limit: int) -> bytes:
        """The last ``limit`` bytes (untrusted); empty if there is no log."""
        return await read_tail(self._console(name), limit)

    def trim(self, names: Iterable[str]) -> None:
        """Cut long logs down to their newest part."""
        for name in names:
            with suppress(FileNotFoundError):
                _trim(self._console(name))

    async def trim_for_ever(self, names: Callable[[], Iterable[str]]) -> None:
        """Trim those of the domains that there are, now and then: xenconsoled takes 300 KB/s at most."""
        while True:
            await asyncio.sleep(_TRIM_SECONDS)
            await asyncio.to_thread(self.trim, names())

    def forget(self, name: str) -> None:
        """Remove the logs of a zone that is gone: names are not used again, so nobody else would."""
        self._console(name).unlink(missing_ok=True)

    def _console(self, name: str) -> Path:
        return self._consoles / f"guest-{name.replace('/', '_')}.log"


def _trim(log: Path) -> None:
    # All append, so what its writer adds meanwhile comes before the tail, and is not lost.
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size > _LONGEST:
            with log.open("rb") as file:
                file.seek(-_KEPT, os.SEEK_END)
                tail = file.read(_KEPT)
            os.truncate(fd, 0)
            os.write(fd, tail)
    finally:
        os.close(fd)
