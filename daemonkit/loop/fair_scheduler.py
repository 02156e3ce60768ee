"""Shares the event loop's time fairly between zones: no zone waits for another zone's messages.

A zone is a zone's channel in protectd, and the streams of a pod in xenpod-cri.

The work caused by a zone runs through its ``Share``, in steps from one await to the next.  Each step's time
is charged to the zone.  A zone that has used less than the others runs at once; among the zones that have
used more, the zone with the least use runs next, and all together run only for ``SLICE_SECONDS`` in one
iteration of the loop.  This is start-time fair queueing (Goyal, Vin, Cheng, 1996) with time in place of
bytes: it needs no rates, and a single zone has the whole loop.

While calls of the daemon's callers are under way, the loop rests between these iterations: otherwise zones
would take a CPU and the interpreter lock from the calls' other work.  Zone work needed by the calls runs at
once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from daemonkit.loop.cpu_clock import cpu_seconds
from daemonkit.loop.in_flight import InFlight

SLICE_SECONDS = 0.00005
"""Seconds of steps in one iteration of the event loop; all other work runs between iterations."""
REST_SECONDS = 0.001
"""Seconds of rest between two iterations with steps while calls are under way; epoll's shortest timeout."""
REST_SLICE_SECONDS = 0.0001
"""Seconds of steps in one iteration before a rest: a tenth of the time in all."""
DEBT_SECONDS = 0.001
"""Most seconds of overrun that further rests compensate."""
STEP_SECONDS = 0.00005
"""Seconds after which a step with more work should end (``Share.enough``)."""
STEP_PIECES = 64
"""Frames, or reads, after which a step should end, regardless of time."""
CARRIED_SECONDS = 0.002
"""Seconds of unused time that an idle zone keeps, to use ahead of others later."""
ASKED_SECONDS = 0.0005
"""Seconds of priority for a zone with each call of the daemon to its agent."""
LEAST_SECONDS = 0.00001
"""Least seconds charged for a step: the cost of starting it."""

T = TypeVar("T")

_payer: ContextVar[Share | None] = ContextVar("payer", default=None)
"""The share that pays for new tasks of ``daemonkit.tasks``."""


def paid(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Charge the new task's work to the share that pays for the current task, if any."""
    share = _payer.get()
    return work if share is None else _Paid(share, work)


def charge(seconds: float) -> None:
    """Charge the current task's share for work done elsewhere."""
    if share := _payer.get():
        share.scheduler.charge(share, seconds)


async def pause() -> None:
    """End the current step if its share has had enough; call after each piece of work."""
    if (share := _payer.get()) and share.enough():
        await asyncio.sleep(0)


class FairScheduler:
    """The loop's time, shared by zones; one object for all links of a process."""

    def __init__(self, in_flight: InFlight | None = None) -> None:
        """``in_flight``: the calls for which the loop rests; None: no rests."""
        self._in_flight = in_flight or InFlight()
        self._clock = 0.0
        """The used time of the zone with the last turn; never decreases."""
        self._spent = 0.0
        """Seconds of steps since the last tick."""
        self._waiting: list[tuple[float, int, Share, asyncio.Future[None]]] = []
        self._asked = 0
        self._ticking = False
        self._resting = False
        """Whether the next tick comes after a rest."""

    def share(self, carried: float = CARRIED_SECONDS, weight: float = 1.0) -> Share:
        """The share of a new zone, without any use.

        ``carried``: seconds of unused time at the start; ``weight``: the zone counts as this many zones.
        """
        return Share(self, self._clock - carried, weight)

    def free(self, share: Share) -> bool:
        """Whether this zone may run at once."""
        if share.used < self._clock - CARRIED_SECONDS:
            share.used = self._clock - CARRIED_SECONDS
        if self._resting and share.used < self._clock:
            return True
        if self._spent >= self._slice or (self._waiting and share.used > self._clock):
            return False
        if share.used > self._clock:
            self._clock = share.used
        return True

    def wait(self, share: Share) -> asyncio.Future[None]:
        """A future, done at the zone's turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._asked += 1
        heappush(self._waiting, (share.used, self._asked, share, turn))
        share.waiting = [*(one for one in share.waiting if not one.done()), turn]
        self._tick_next()
        return turn

    def asked(self, share: Share, seconds: float) -> None:
        """Let the zone run ahead for this many seconds of steps: a caller waits for its next step."""
        share.used = max(share.used - seconds, self._clock - CARRIED_SECONDS)
        if share.used < self._clock:
            for turn in share.waiting:
                if not turn.done():
                    turn.set_result(None)
            share.waiting.clear()

    def charge(self, share: Share, seconds: float) -> None:
        """Charge the zone for a step of this many seconds of CPU time."""
        ahead = self._resting and share.used < self._clock
        share.used += seconds / share.weight
        share.expected = max(seconds, share.expected * 0.875)
        if not ahead:
            self._spent += seconds
        if self._spent >= self._slice:
            # Before the zone's own next step: a single zone never waits.
            self._tick_next()

    def _tick_next(self) -> None:
        if self._ticking:
            return
        self._ticking = True
        self._resting = self._in_flight.any()
        loop = asyncio.get_running_loop()
        if self._resting:
            loop.call_later(REST_SECONDS, self._tick)
        else:
            loop.call_soon(self._tick)

    @property
    def _slice(self) -> float:
        return REST_SLICE_SECONDS if self._resting else SLICE_SECONDS

    def _tick(self) -> None:
        """Begin an iteration: admit as many zones as are expected to fit."""
        self._ticking = False
        # A step can take longer than the slice: then several rests follow.
        self._spent = min(max(0.0, self._spent - REST_SLICE_SECONDS), DEBT_SECONDS) if self._resting else 0.0
        left = self._slice - self._spent
        while self._waiting and left > 0:
            used, _, share, turn = heappop(self._waiting)
            if not turn.done():
                self._clock = max(self._clock, used)
                left -= max(share.expected, LEAST_SECONDS)
                turn.set_result(None)
        # Otherwise a zone after a pause would wait for rests long over.
        if self._waiting or self._spent >= self._slice:
            self._tick_next()


class Share:
    """A zone's part of the loop's time."""

    def __init__(self, scheduler: FairScheduler, used: float, weight: float) -> None:
        """Use ``FairScheduler.share``."""
        self.scheduler = scheduler
        self.weight = weight
        self.used = used
        """Seconds used by the zone, on the clock of ``FairScheduler``."""
        self.expected = 0.0
        """Expected seconds of the next step, from earlier steps."""
        self.waiting: list[asyncio.Future[None]] = []
        """Turns that the zone's steps wait for; possibly over."""
        self._began = 0.0
        self._pieces = 0

    def begin(self) -> None:
        """Begin a step."""
        self._pieces = 0
        self._began = time.perf_counter()

    def asked(self, seconds: float = ASKED_SECONDS) -> None:
        """Give the zone priority because a caller waits for it; ``seconds``: at most ``CARRIED_SECONDS``."""
        self.scheduler.asked(self, seconds)

    def enough(self) -> bool:
        """Whether the step should pause now, with ``asyncio.sleep(0)``; ask after each piece of work."""
        self._pieces += 1
        return self._pieces >= STEP_PIECES or time.perf_counter() - self._began >= STEP_SECONDS

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the work, each step in this zone's turn and at its expense."""
        return await _Stepped(self, work())

    async def pay(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the work, and all its new tasks of ``daemonkit.tasks``, at the zone's expense."""
        before = _payer.set(self)
        try:
            return await self.run(work)
        finally:
            _payer.reset(before)


class _Stepped(Generic[T]):
    """A coroutine whose steps wait for their turns.  A cancellation waits for none."""

    def __init__(self, share: Share, work: Coroutine[Any, Any, T]) -> None:
        self._share = share
        self._work = work

    def __await__(self) -> Generator[Any, None, T]:
        try:
            return (yield from self._steps())
        except GeneratorExit:
            self._work.close()
            raise

    def _steps(self) -> Generator[Any, None, T]:
        share, scheduler = self._share, self._share.scheduler
        thrown: BaseException | None = None
        while True:
            if thrown is None and not scheduler.free(share):
                turn = scheduler.wait(share)
                try:
                    yield from turn
                except GeneratorExit:
                    raise
                except BaseException as error:
                    thrown = error
            share.begin()
            # Without the time of other threads and processes, or a zone would pay for a busy host.
            before = cpu_seconds()
            try:
                wanted = self._work.send(None) if thrown is None else self._work.throw(thrown)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                scheduler.charge(share, cpu_seconds() - before)
            thrown = None
            try:
                yield wanted
            except GeneratorExit:
                raise
            except BaseException as error:
                thrown = error


class _Paid(Coroutine[Any, Any, T]):
    """A coroutine in steps, for a task: unlike an ``async def``, closes the work if never started."""

    def __init__(self, share: Share, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._steps = _Stepped(share, work).__await__()

    def __await__(self) -> Generator[Any, None, T]:
        return self._steps

    def send(self, value: Any) -> Any:
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        try:
            return self._steps.throw(*error)
        except BaseException:
            self._work.close()
            raise

    def close(self) -> None:
        self._steps.close()
        self._work.close()
