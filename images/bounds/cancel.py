"""Tells a thread to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from images.image_errors import Cancelled

T = TypeVar("T")


class CancelToken:
    """Tells a thread to stop; the thread checks the token at every chunk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._unblocks: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """Tell the thread to stop, and unblock its current system call."""
        with self._lock:
            self._event.set()
            for unblock in self._unblocks:
                unblock()

    def check(self) -> None:
        """Raise Cancelled once the thread is to stop."""
        if self._event.is_set():
            raise Cancelled

    def passing(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; raises Cancelled before the next item after cancel()."""
        for item in items:
            self.check()
            yield item

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise Cancelled at once."""
        self._event.wait(seconds)
        self.check()

    @contextmanager
    def unblocking(self, unblock: Callable[[], None]) -> Iterator[None]:
        """While the body runs, ``cancel`` also calls ``unblock`` to end the body's system call.

        The call comes from another thread, must not block, and never happens after the body.
        """
        with self._lock:
            self.check()
            self._unblocks.append(unblock)
        try:
            yield
        finally:
            with self._lock:
                self._unblocks.remove(unblock)
