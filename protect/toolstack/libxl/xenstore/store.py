"""xenstore from the event loop: reads and writes in threads, watches by file descriptor.

A connection does not outlive its xenstored: ``reconnect`` makes a new connection and moves the watches to it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Concatenate, ParamSpec, TypeVar

from daemonkit.tasks import complete
from xenbind.xenstore import Xenstore

SEED = "data/seed"
"""Node of a domain's own part of xenstore."""
P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)


class AsyncStore:
    """A connection to xenstore.  Errors are OSError."""

    def __init__(self) -> None:
        self._store = Xenstore()
        self._calls: Counter[Xenstore] = Counter()  # calls under way, by connection
        self._tokens = count(1)
        self._watches: dict[str, tuple[str, asyncio.Event]] = {}  # path and event by token
        self._fd = -1

    async def read(self, path: str) -> bytes | None:
        """The value of a node (untrusted if a guest may write it); None: no such node."""
        return await self.ask(Xenstore.read, path)

    async def write(self, path: str, value: str) -> None:
        """Write a node."""
        await self.ask(Xenstore.write, path, value.encode())

    async def write_below(self, node: str, name: str, value: str) -> None:
        """Write a child of a node.  FileNotFoundError: no such node; a domain's may vanish any time."""
        await self.ask(Xenstore.write_below, node, name, value.encode())

    async def seed(self, domid: int) -> None:
        """Give a domain the seed of its random numbers; its agent reads and removes the seed."""
        await self.write_below(f"/local/domain/{domid}", SEED, secrets.token_hex(32))

    async def list(self, path: str) -> list[str]:
        """The names of a node's children."""
        return await self.ask(Xenstore.list, path)

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator[asyncio.Event]:
        """An event, set at first and at every change of ``path``; clear the event before each read."""
        token = str(next(self._tokens))
        changed = asyncio.Event()
        self._watches[token] = path, changed
        try:
            await self.ask(Xenstore.watch, path, token)
            self._listen()
            yield changed
        finally:
            del self._watches[token]
            await self._unwatch(path, token)

    async def _unwatch(self, path: str, token: str) -> None:
        """A lost connection has no watches: its error must not hide the caller's own error."""
        try:
            await self.ask(Xenstore.unwatch, path, token)
        except OSError as error:
            log.debug("%s: %s", path, error)

    async def reconnect(self) -> None:
        """Connect to the present xenstored; all watchers are told to look again."""
        fresh = await complete(asyncio.to_thread(Xenstore))
        stale, self._store = self._store, fresh
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._fd = -1
        self._close_if_idle(stale)
        for token, (path, changed) in list(self._watches.items()):
            await self.ask(Xenstore.watch, path, token)
            changed.set()
        if self._watches:
            self._listen()

    async def ask(
        self, function: Callable[Concatenate[Xenstore, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function with the connection, in a thread; returns its result."""
        store = self._store
        self._calls[store] += 1
        try:
            # Completed: ``close`` must not run while a thread uses the connection.
            return await complete(asyncio.to_thread(function, store, *args, **kwargs))
        finally:
            self._calls[store] -= 1
            if store is not self._store:
                self._close_if_idle(store)

    def _close_if_idle(self, stale: Xenstore) -> None:
        """Close a replaced connection, if idle; otherwise its last call closes it."""
        if not self._calls[stale]:
            del self._calls[stale]
            stale.close()

    def _listen(self) -> None:
        if self._fd < 0:  # no descriptor before the first watch
            self._fd = self._store.fd
            asyncio.get_running_loop().add_reader(self._fd, self._take)

    def _take(self) -> None:
        try:
            while (fired := self._store.next_watch()) is not None:
                if fired[1] in self._watches:
                    self._watches[fired[1]][1].set()
        except OSError as error:  # the end stays readable; Xenstored also notices it
            asyncio.get_running_loop().remove_reader(self._fd)
            self._fd = -1
            log.warning("no more changes are heard of: %s", error)

    def close(self) -> None:
        """Close the connection; no call may be under way."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
        self._store.close()
