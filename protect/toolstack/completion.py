"""Runs methods of a toolstack to their end, even if the caller is cancelled."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from daemonkit.tasks import complete
from protect.model.toolstack import DomainId


class Completing:
    """Base of the toolstacks: knows the ``completed`` methods under way."""

    name: str

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    def abandon(self, domain: DomainId) -> None:
        """Do nothing: the steps of this toolstack never wait for a guest."""

    async def idle(self) -> None:
        """Wait until no completed method is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)


S = TypeVar("S", bound=Completing)
P = ParamSpec("P")
T = TypeVar("T")


def completed(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Decorator that makes a method one step: a cancelled caller gets CancelledError at the method's end."""

    @functools.wraps(method)
    def step(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        work = method(self, *args, **kwargs)
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}: {method.__name__}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return complete(task)

    return step
