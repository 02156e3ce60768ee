"""Shares the event loop's time fairly between zones, so that none waits for what another one sends.

What a zone causes here runs through its ``Share``, in steps from one await to the next.  Each step's time
is charged to the zone.  A zone that has used less than the others goes at once; of those that have used
more, the one that is owed most goes next, and all together only for ``SLICE`` in one iteration of the loop.
While several zones want time, those that have used more rest for as long as they worked, so that what they
have the daemon do leaves it, and the other processes of the host, half of a CPU.
This is start-time fair queueing (Goyal, Vin, Cheng, 1996) with time in place of bytes: it needs no rates,
and a zone that is alone has the whole loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

SLICE = 0.00005
"""Seconds of steps in one iteration of the event loop; all other work runs between iterations."""
STEP = 0.00005
"""Seconds after which a step with more to do ends itself (``Share.enough``)."""
STEP_PIECES = 64
"""Frames, or reads, after which a step ends itself whatever the clock says."""
SPELL = 0.001
"""Seconds of steps after which zones rest, while several want time."""
REST = 0.001
"""Seconds of that rest; the shortest that an event loop has."""
TOGETHER = 1.0
"""Seconds for which zones count as wanting time together, after another one had a step."""
CARRIED = 0.001
"""Seconds of unused time that an idle zone keeps, to use ahead of others later."""
LEAST = 0.00001
"""Least seconds accounted for a step: starting it costs as much."""

T = TypeVar("T")


class Turns:
    """The loop's time, shared by zones; one for all links of a process."""

    def __init__(self) -> None:
        self._clock = 0.0
        """The used time of the zone that last had a turn; it never decreases."""
        self._spent = 0.0
        """Seconds of steps since the last tick."""
        self._waiting: list[tuple[float, int, Share, asyncio.Future[None]]] = []
        self._asked = 0
        self._ticking = False
        self.resting = False
        """Whether those that have used more wait, although the loop has nothing to do."""
        self._spell = 0.0
        """Seconds of steps since the last rest, less those that were not used by any."""
        self._looked = 0.0
        self._latest: Share | None = None
        self._together_until = 0.0

    def share(self) -> Share:
        """The share of one more zone."""
        return Share(self, self._clock)

    def free(self, share: Share) -> bool:
        """Whether this zone may go on at once."""
        if share.used < self._clock - CARRIED:
            share.used = self._clock - CARRIED
        if self.resting:
            # Whoever has used less is not part of what rests.
            return share.used <= self._clock
        if self._spent >= SLICE or (self._waiting and share.used > self._clock):
            return False
        if share.used > self._clock:
            self._clock = share.used
        return True

    def wait(self, share: Share) -> asyncio.Future[None]:
        """A future that is done when it is the zone's turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._asked += 1
        heappush(self._waiting, (share.used, self._asked, share, turn))
        self._tick_next()
        return turn

    def charge(self, share: Share, seconds: float) -> None:
        """Charge the zone for a step of this many seconds."""
        share.used += seconds
        share.expected = max(seconds, share.expected * 0.875)
        self._spent += seconds
        self._spell += seconds
        if share is not self._latest:
            if self._latest is not None:
                self._together_until = time.perf_counter() + TOGETHER
            self._latest = share
        if self._spent >= SLICE:
            # Before the zone's own next step: alone it never waits.
            self._tick_next()

    def _tick_next(self) -> None:
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        """Begin an iteration: let as many zones go on as are expected to fit into it."""
        now = time.perf_counter()
        self._spell = max(self._spent, self._spell - max(0.0, now - self._looked - self._spent))
        self._looked, self._spent = now, 0.0
        if self._spell >= SPELL and now < self._together_until:
            self.resting = True
            asyncio.get_running_loop().call_later(REST, self._rested)
            return
        self._ticking = False
        room = SLICE
        while self._waiting and room > 0:
            used, _, share, turn = heappop(self._waiting)
            if not turn.done():
                self._clock = max(self._clock, used)
                room -= max(share.expected, LEAST)
                turn.set_result(None)
        if self._waiting:
            self._tick_next()

    def _rested(self) -> None:
        self.resting = False
        self._spell = 0.0
        self._tick()


class Share:
    """One zone's part of the loop's time."""

    def __init__(self, turns: Turns, used: float) -> None:
        """Use ``Turns.share``."""
        self.turns = turns
        self.used = used
        """Seconds that the zone has used, on the clock of ``Turns``."""
        self.expected = 0.0
        """Seconds that its next step is expected to take, from earlier ones."""
        self._began = 0.0
        self._pieces = 0

    def begin(self) -> float:
        """Begin a step."""
        self._pieces = 0
        self._began = time.perf_counter()
        return self._began

    def enough(self) -> bool:
        """Whether the step should pause now, with ``asyncio.sleep(0)``; ask after each piece of work."""
        self._pieces += 1
        return self._pieces >= STEP_PIECES or time.perf_counter() - self._began >= STEP

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the work, each step of it in this zone's turn and at its expense."""
        return await _Stepped(self, work())


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
        share, turns = self._share, self._share.turns
        thrown: BaseException | None = None
        while True:
            if thrown is None and not turns.free(share):
                turn = turns.wait(share)
                try:
                    yield from turn
                except GeneratorExit:
                    raise
                except BaseException as error:
                    thrown = error
            began = share.begin()
            try:
                wanted = self._work.send(None) if thrown is None else self._work.throw(thrown)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                turns.charge(share, time.perf_counter() - began)
            thrown = None
            try:
                yield wanted
            except GeneratorExit:
                raise
            except BaseException as error:
                thrown = error
