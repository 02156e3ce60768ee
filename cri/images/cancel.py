"""Calling work off that runs in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cri.images.errors import Cancelled


class Cancel:
    """A flag that threads look at, and interrupts for those that are blocked in a system call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._interrupts: dict[int, Callable[[], None]] = {}
        self._serial = 0

    def set(self) -> None:
        """Calls the work off; interrupts run in the caller's thread and must not block."""
        with self._lock:
            self._set = True
            interrupts = list(self._interrupts.values())
        for interrupt in interrupts:
            interrupt()

    @property
    def is_set(self) -> bool:
        """Whether the work was called off."""
        return self._set

    def check(self) -> None:
        """Raises Cancelled once the work was called off."""
        if self._set:
            raise Cancelled

    @contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """While the body runs, set() also calls interrupt, which unblocks the body."""
        with self._lock:
            self._serial += 1
            serial = self._serial
            self._interrupts[serial] = interrupt
            already = self._set
        try:
            if already:
                raise Cancelled
            yield
        finally:
            with self._lock:
                del self._interrupts[serial]
