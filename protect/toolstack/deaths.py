"""Tells listeners of the ends of domains and of their file servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Generic, TypeVar
from weakref import WeakSet

from protect.model.toolstack import DomainDeath

T = TypeVar("T")


class Listener(AsyncIterator[T]):
    """One caller of ``deaths()`` or a similar method; collects from its creation on."""

    def __init__(self, already: Iterable[T]) -> None:
        self._queue: asyncio.Queue[T | None] = asyncio.Queue()
        for end in already:
            self.tell(end)

    def tell(self, end: T | None) -> None:
        """None: no more ends will come."""
        self._queue.put_nowait(end)

    async def __anext__(self) -> T:
        end = await self._queue.get()
        if end is None:
            self.tell(None)
            raise StopAsyncIteration
        return end


class Listeners(Generic[T]):
    """Tells every listener of every end, once."""

    def __init__(self) -> None:
        self._listeners: WeakSet[Listener[T]] = WeakSet()

    def listen(self, already: Iterable[T]) -> Listener[T]:
        """A listener for ends from now on; ``already`` come first."""
        listener = Listener(already)
        self._listeners.add(listener)
        return listener

    def tell(self, end: T) -> None:
        """Tell all present listeners."""
        for listener in self._listeners:
            listener.tell(end)

    def close(self) -> None:
        """End every iteration."""
        for listener in self._listeners:
            listener.tell(None)


class Deaths(Listeners[DomainDeath]):
    """Ends of domains."""
