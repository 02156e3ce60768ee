"""xenstore from the event loop: reads and writes in threads, watches by file descriptor."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import ParamSpec, TypeVar

from daemonkit.tasks import complete
from xenbind.xenstore import Xenstore

SEED = "data/seed"
"""Node of a domain's own part of xenstore."""
P = ParamSpec("P")
T = TypeVar("T")


class AsyncStore:
    """A connection to xenstore.  Errors are OSError."""

    def __init__(self) -> None:
        self._store = Xenstore()
        self._tokens = count(1)
        self._events: dict[str, asyncio.Event] = {}
        self._fd = -1

    async def read(self, path: str) -> bytes | None:
        """The value of a node (untrusted where a guest may write); None: there is no such node."""
        return await self._run(self._store.read, path)

    async def write(self, path: str, value: str) -> None:
        """Write a node."""
        await self._run(self._store.write, path, value.encode())

    async def seed(self, domid: int) -> None:
        """Give a domain the seed of its random numbers; its agent takes it and removes it."""
        await self.write(f"/local/domain/{domid}/{SEED}", secrets.token_hex(32))

    async def list(self, path: str) -> list[str]:
        """The names of a node's children."""
        return await self._run(self._store.list, path)

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set at every change of ``path``, and once at first; clear it before you look."""
        token = str(next(self._tokens))
        changed = self._events[token] = asyncio.Event()
        try:
            await self._run(self._store.watch, path, token)
            self._listen()
            yield changed
        finally:
            del self._events[token]
            await self._run(self._store.unwatch, path, token)

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # Completed: ``close`` must not come while a thread uses the connection.
        return await complete(asyncio.to_thread(function, *args, **kwargs))

    def _listen(self) -> None:
        if self._fd < 0:  # there is none before the first watch
            self._fd = self._store.fd
            asyncio.get_running_loop().add_reader(self._fd, self._take)

    def _take(self) -> None:
        while (fired := self._store.next_watch()) is not None:
            if event := self._events.get(fired[1]):
                event.set()

    def close(self) -> None:
        """Close the connection; no call may be under way."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
        self._store.close()
