"""Threads that call libxl.  A context serves one call at a time; each call takes an idle context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from protect.model.errors import DomainGone, ToolstackError
from xenbind import errors
from xenbind.context import Context

P = ParamSpec("P")
T = TypeVar("T")

_QUESTIONS = 2


class Workers:
    """The only place where libxl's blocking calls leave the event loop.

    A call that changes a domain may take seconds, because it waits for other processes.  Therefore read-only
    calls have their own threads.  No call here waits for a guest: see ``Disks``.
    """

    def __init__(self, threads: int) -> None:
        self._changes = _Pool(threads, "libxl")
        self._questions = _Pool(_QUESTIONS, "libxl question")

    async def open(self) -> None:
        """Make the contexts of questions now: without xenstored a later creation would fail.  XenError."""
        await self._questions.fill()

    async def run(
        self, function: Callable[Concatenate[Context, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call ``function(context, ...)`` in a thread.  Only for ``completed`` methods: no cancellation."""
        return await self._changes.run(function, *args, **kwargs)

    async def ask(
        self, function: Callable[Concatenate[Context, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Like ``run``, for a function that only reads from Xen or xenstore."""
        return await self._questions.run(function, *args, **kwargs)

    def hold(self) -> None:
        """Make no new contexts until ``renew``: without xenstored the creation could block for ever."""
        self._changes.held = self._questions.held = True

    @property
    def held(self) -> bool:
        """Whether xenstored does not answer; the existing contexts can still ask Xen."""
        return self._changes.held

    def renew(self) -> None:
        """Make later calls use new contexts: the old contexts have lost their xenstored."""
        self._changes.renew()
        self._questions.renew()

    def close(self) -> None:
        """Wait for the calls under way, and free the contexts."""
        self._changes.close()
        self._questions.close()


class _Pool:
    """Threads, and contexts for them."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads = threads
        self._slots = asyncio.Semaphore(threads)
        self._idle: list[Context] = []  # append and pop are atomic
        self._fresh: set[Context] = set()
        """The contexts made since the last ``renew``."""
        self.held = False

    async def run(
        self, function: Callable[Concatenate[Context, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        async with self._slots:
            context = await self._take()
            call = self._pool.submit(function, context, *args, **kwargs)
            # The thread returns the context: after a cancellation of the caller the call still uses it.
            call.add_done_callback(lambda _: self._give_back(context))
            return await asyncio.wrap_future(call)

    async def fill(self) -> None:
        """Make a context for each thread."""
        taken = [await self._take() for _ in range(self._threads)]
        for context in taken:
            self._give_back(context)

    async def _take(self) -> Context:
        try:
            return self._idle.pop()
        except IndexError:
            if self.held:
                raise ConnectionRefusedError("xenstored does not answer") from None
            context = await asyncio.get_running_loop().run_in_executor(self._pool, Context)
            self._fresh.add(context)
            return context

    def _give_back(self, context: Context) -> None:
        """Keep a context for the next call, unless stale or without valid event state."""
        if context.usable and context in self._fresh:
            self._idle.append(context)
        else:
            self._fresh.discard(context)
            context.close()

    def renew(self) -> None:
        """Close the idle contexts now, and the others at the end of their calls."""
        self.held = False
        self._fresh.clear()
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        self._pool.shutdown()
        while self._idle:
            self._idle.pop().close()


@contextmanager
def xen_faults(operation: str, subject: str) -> Iterator[None]:
    """Raise errors of Xen and of the system as faults."""
    try:
        yield
    except errors.DomainNotFound as error:
        raise DomainGone(operation, subject, "no such domain") from error
    except (errors.XenError, OSError) as error:
        raise ToolstackError(operation, subject, str(error)) from error
