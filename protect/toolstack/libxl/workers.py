"""Threads that call libxl.  A context serves one call at a time, so each call takes an idle one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from xenbind.context import Context

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """``run`` is the one place where libxl's blocking calls leave the event loop."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="libxl")
        self._turns = asyncio.Semaphore(threads)
        self._idle: list[Context] = []  # append and pop are atomic

    async def run(
        self, function: Callable[Concatenate[Context, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call ``function(context, ...)`` in a thread; for ``completed`` methods, which are not cancelled."""
        async with self._turns:
            context = await self._take()
            call = self._pool.submit(function, context, *args, **kwargs)
            # By the thread: should the caller be cancelled, the call still has the context.
            call.add_done_callback(lambda _: self._give_back(context))
            return await asyncio.wrap_future(call)

    async def _take(self) -> Context:
        try:
            return self._idle.pop()
        except IndexError:
            return await asyncio.get_running_loop().run_in_executor(self._pool, Context)

    def _give_back(self, context: Context) -> None:
        """Keep it for the next call, unless libxl has lost track of events in it."""
        if context.usable:
            self._idle.append(context)
        else:
            context.close()

    def close(self) -> None:
        """Wait for the calls under way, and free the contexts."""
        self._pool.shutdown()
        while self._idle:
            self._idle.pop().close()
