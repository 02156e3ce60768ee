"""Looks up paths named by a caller, without letting a file system block the daemon (ADR 30)."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from daemonkit.faults import TooLate
from daemonkit.host.lookup import Lookup, Lookups

T = TypeVar("T")


class HostPaths:
    """Asks processes that may hang.

    ``owner``: the pod that names the path, ``namespace/name``; see Lookups. TooLate: the file system did not
    answer, or earlier calls of the owner hang.  OSError: an error from the system.
    """

    def __init__(self, program: Path, seconds: float = 10.0) -> None:
        """``program``: hostc/lookup; ``seconds``: how long to wait for each call."""
        self._lookups = Lookups(program, lambda owner: owner.partition("/")[0], spare=True)
        self._seconds = seconds

    def close(self) -> None:
        """End the spare process."""
        self._lookups.close()

    async def read(self, owner: str, path: str) -> bytes:
        """A plain file, at most a byte more than ``lookup.READ_MAX_BYTES``; EISDIR, EINVAL: no plain file."""
        return await self._ask(owner, path, lambda lookup: lookup.read(path))

    async def make_directory(self, owner: str, path: str) -> None:
        """Make a directory and its parents (0755), unless it exists."""
        with await self._ask(owner, path, lambda lookup: lookup.find(path, make=True)) as place:
            if not stat.S_ISDIR(place.mode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)

    async def _ask(self, owner: str, path: str, question: Callable[[Lookup], Awaitable[T]]) -> T:
        answers: list[T] = []
        try:
            async with asyncio.timeout(self._seconds), self._lookups.begin(owner) as lookup:
                try:
                    answers.append(await question(lookup))
                except OSError as error:
                    # An answer, too: the process stays usable.
                    failure = error
        except TimeoutError:
            hint = (
                "earlier calls of the pod or its namespace have not come back"
                if self._lookups.stuck(owner)
                else ""
            )
            cause = f"its file system did not answer within {self._seconds:g} s"
            raise TooLate("look up", f"{path:.200}", cause, hint) from None
        if not answers:
            raise failure
        return answers[0]
