"""Threads that call libxl, each with a context of its own: a context serves one call at a time."""

from __future__ import annotations

import asyncio
import threading
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
        self._own = threading.local()
        self._contexts: list[Context] = []  # to be freed at the end; append is atomic

    async def run(
        self, function: Callable[Concatenate[Context, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call ``function(context, ...)`` in a thread.

        A caller that is cancelled stops waiting; the call still runs to its end.
        """

        def work() -> T:
            return function(self._context(), *args, **kwargs)

        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._pool, work))

    def _context(self) -> Context:
        """This thread's context; a new one when libxl has lost track of events in the old."""
        context: Context | None = getattr(self._own, "context", None)
        if context is not None and context.usable:
            return context
        if context is not None:
            self._contexts.remove(context)
            context.close()
        self._own.context = None
        self._own.context = context = Context()
        self._contexts.append(context)
        return context

    def close(self) -> None:
        """Wait for the calls under way, and free the contexts."""
        self._pool.shutdown()
        for context in self._contexts:
            context.close()
        self._contexts.clear()
