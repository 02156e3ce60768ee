"""Threads that work on one thing together: the first of them that fails calls the others off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from cri.images.cancel import Cancel

P = ParamSpec("P")
T = TypeVar("T")


class Crew:
    """See crew(). cancel: what its work is to look at."""

    def __init__(self) -> None:
        self.cancel = Cancel()
        self.failure: BaseException | None = None

    def submit(
        self, threads: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Has work done by a thread."""
        future = threads.submit(work, *args, **kwargs)
        future.add_done_callback(self._ended)
        return future

    def fail(self, error: BaseException) -> None:
        """Calls all off, if nothing did before."""
        self.failure = self.failure or error
        self.cancel.set()

    def _ended(self, future: Future[T]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self.fail(error)


@contextmanager
def crew(cancel: Cancel, *pools: ThreadPoolExecutor) -> Iterator[Crew]:
    """Waits at the end until the pools are done, and shuts them down.

    Raises what failed first, not what failed since it was called off for that; Cancelled when the caller did.
    """
    mine = Crew()
    with cancel.interrupting(mine.cancel.set):
        try:
            yield mine
        except BaseException as error:
            mine.fail(error)
        for pool in pools:
            pool.shutdown(cancel_futures=mine.failure is not None)
    if mine.failure is not None:
        cancel.check()
        raise mine.failure
