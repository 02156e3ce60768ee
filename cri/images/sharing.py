"""Work that several threads may ask for at once is done once; and only so much of it at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from cri.images.cancel import Cancel
from cri.images.errors import Cancelled

T = TypeVar("T")


class _Flight(Generic[T]):
    def __init__(self) -> None:
        self.done = False
        self.abandoned = False
        self.result: T | None = None
        self.error: Exception | None = None
        self.waiters: list[threading.Event] = []


class Shared(Generic[T]):
    """The first thread that asks for a key does its work; the others wait for the outcome.

    When the first is cancelled, one of the others begins anew: nobody fails because another gave up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight[T]] = {}

    def run(self, key: Hashable, work: Callable[[], T], cancel: Cancel) -> T:
        """The work's result; raises what it raised, and Cancelled when this caller gives up."""
        while True:
            wake = threading.Event()
            with self._lock:
                flight = self._flights.get(key)
                if flight is None:
                    mine: _Flight[T] = _Flight()
                    self._flights[key] = mine
                else:
                    flight.waiters.append(wake)
            if flight is None:
                return self._do(key, mine, work)
            with cancel.interrupting(wake.set):
                wake.wait()
            cancel.check()
            if flight.error is not None:
                raise flight.error
            if not flight.abandoned:
                return flight.result  # type: ignore[return-value]

    def _do(self, key: Hashable, flight: _Flight[T], work: Callable[[], T]) -> T:
        try:
            flight.result = work()
            return flight.result
        except Cancelled:
            flight.abandoned = True
            raise
        except Exception as error:
            flight.error = error
            raise
        except BaseException:
            flight.abandoned = True
            raise
        finally:
            with self._lock:
                del self._flights[key]
                waiters = flight.waiters
            for wake in waiters:
                wake.set()


class Gate:
    """Lets so many in at a time; waiting ends when the waiter is cancelled."""

    def __init__(self, places: int) -> None:
        self._condition = threading.Condition()
        self._free = places

    @contextmanager
    def passing(self, cancel: Cancel) -> Iterator[None]:
        """Holds a place while the body runs."""
        with cancel.interrupting(self._wake):
            with self._condition:
                while not self._free:
                    cancel.check()
                    self._condition.wait()
                self._free -= 1
        try:
            yield
        finally:
            with self._condition:
                self._free += 1
                self._condition.notify()

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()


class Gates:
    """A gate for each key, for as long as somebody uses it."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._gates: WeakValueDictionary[str, Gate] = WeakValueDictionary()

    @contextmanager
    def passing(self, key: str, cancel: Cancel) -> Iterator[None]:
        """Holds a place at the key's gate while the body runs."""
        with self._lock:
            gate = self._gates.get(key)
            if gate is None:
                gate = self._gates[key] = Gate(self._places)
        with gate.passing(cancel):
            yield
