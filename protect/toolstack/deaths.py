"""Tells listeners when domains end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from weakref import WeakSet

from protect.model.toolstack import DomainDeath


class Listener(AsyncIterator[DomainDeath]):
    """A caller of ``deaths()``, which collects deaths as soon as it is made."""

    def __init__(self, already: Iterable[DomainDeath]) -> None:
        self._queue: asyncio.Queue[DomainDeath | None] = asyncio.Queue()
        for death in already:
            self.tell(death)

    def tell(self, death: DomainDeath | None) -> None:
        """Queue a death; None: there will be no more."""
        self._queue.put_nowait(death)

    async def __anext__(self) -> DomainDeath:
        death = await self._queue.get()
        if death is None:
            self.tell(None)
            raise StopAsyncIteration
        return death


class Deaths:
    """Tells every listener of every death, once."""

    def __init__(self) -> None:
        self._listeners: WeakSet[Listener] = WeakSet()

    def listen(self, already: Iterable[DomainDeath]) -> Listener:
        """Listen from now on; the deaths in ``already`` come first."""
        listener = Listener(already)
        self._listeners.add(listener)
        return listener

    def tell(self, death: DomainDeath) -> None:
        """Tell all who listen now of a death."""
        for listener in self._listeners:
            listener.tell(death)

    def close(self) -> None:
        """End every iteration."""
        for listener in self._listeners:
            listener.tell(None)
