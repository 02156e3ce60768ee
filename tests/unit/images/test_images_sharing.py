"""Work shared between threads: done once, begun anew when its doer gives up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cri.images.cancel import Cancel
from cri.images.errors import Cancelled
from cri.images.sharing import Gate, Gates, Shared
from daemonkit.faults import Broken


class _Work:
    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.release = threading.Event()
        self.runs = 0

    def __call__(self) -> str:
        self.runs += 1
        self.started.release()
        assert self.release.wait(10)
        return "done"

    def cancellable(self, cancel: Cancel) -> Callable[[], str]:
        def run() -> str:
            with cancel.interrupting(self.release.set):
                self()
            cancel.check()
            return "done"

        return run


def _waiting(shared: Shared[str], key: str, number: int) -> None:
    """Returns once so many threads wait for the key."""
    polled = threading.Event()
    for _ in range(12_000):
        with shared._lock:
            if len(shared._flights[key].waiters) >= number:
                return
        polled.wait(0.005)
    raise AssertionError("nobody waits")


def test_many_ask_and_one_works() -> None:
    shared: Shared[str] = Shared()
    work = _Work()
    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(shared.run, "k", work, Cancel()) for _ in range(8)]
        work.started.acquire()
        _waiting(shared, "k", 7)
        work.release.set()
        assert [future.result(60) for future in futures] == ["done"] * 8
    assert work.runs == 1
    assert shared.run("k", lambda: "again", Cancel()) == "again"


def test_a_failure_is_everyones() -> None:
    shared: Shared[str] = Shared()
    work = _Work()

    def fail() -> str:
        work()
        raise Broken("x", "y", "z")

    with ThreadPoolExecutor(3) as threads:
        futures = [threads.submit(shared.run, "k", fail, Cancel()) for _ in range(3)]
        work.started.acquire()
        _waiting(shared, "k", 2)
        work.release.set()
        for future in futures:
            with pytest.raises(Broken):
                future.result(60)
    assert work.runs == 1


def test_when_the_worker_is_cancelled_another_begins_anew() -> None:
    shared: Shared[str] = Shared()
    first, second = _Work(), _Work()
    second.release.set()
    cancel = Cancel()
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(shared.run, "k", first.cancellable(cancel), cancel)
        first.started.acquire()
        two = threads.submit(shared.run, "k", second, Cancel())
        _waiting(shared, "k", 1)
        cancel.set()
        with pytest.raises(Cancelled):
            one.result(60)
        assert two.result(60) == "done"


def test_a_waiter_that_is_cancelled_leaves_at_once() -> None:
    shared: Shared[str] = Shared()
    work, cancel = _Work(), Cancel()
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(shared.run, "k", work, Cancel())
        work.started.acquire()
        two = threads.submit(shared.run, "k", work, cancel)
        _waiting(shared, "k", 1)
        cancel.set()
        with pytest.raises(Cancelled):
            two.result(60)
        work.release.set()
        assert one.result(60) == "done"


def test_a_gate_bounds_and_lets_go() -> None:
    gate, cancel = Gate(1), Cancel()
    with gate.passing(Cancel()), ThreadPoolExecutor(1) as threads:

        def enter() -> None:
            with gate.passing(cancel):
                raise AssertionError("two were let in")

        waiting = threads.submit(enter)
        cancel.set()
        with pytest.raises(Cancelled):
            waiting.result(60)
    with gate.passing(Cancel()):
        pass


def test_cancelled_work_does_not_begin() -> None:
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled), cancel.interrupting(lambda: None):
        raise AssertionError("begun")
    with pytest.raises(Cancelled):
        cancel.check()


def test_gates_of_their_own() -> None:
    gates, cancel = Gates(1), Cancel()
    cancel.set()
    with gates.passing("one", Cancel()), gates.passing("two", Cancel()):
        with pytest.raises(Cancelled), gates.passing("one", cancel):
            raise AssertionError("two were let in")
    with gates.passing("one", Cancel()):
        pass
    assert len(gates._gates) == 0
