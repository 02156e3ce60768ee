"""Remembers the hosts that failed a short while ago, which are then asked last."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from daemonkit.faults import Fault
from images.errors import Busy, Interrupted, Stalled, Unconnected

SECONDS = 60.0
"""Seconds for which a failed host is asked last; then one caller tries it in its usual place."""
_MOST = 4096


@dataclass(frozen=True, slots=True)
class _Failure:
    """until: when one caller may try again (monotonic seconds); cause: what the host did."""

    until: float
    cause: str


class HostHealth:
    """The failures of hosts, remembered for a while; used on the event loop.

    A host that could not be connected to has failed for everybody.  One that stalled, broke off or answered
    5xx has failed for that registry only: a mirror of several passes on what their servers do, and the
    owner of one of them must not take it from the others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[tuple[str, str], _Failure] = {}

    def failure(self, host: str, registry: str) -> str:
        """The recent failure of a host; "" if the host is to be asked in its usual place.

        Once the time is over, the first caller is told "" and tries it; the others go on without it.
        """
        causes = [self._cause((host, about)) for about in ("", registry)]
        return next(filter(None, causes), "")

    def failed(self, host: str, registry: str, fault: Fault) -> None:
        """Remember a failure, if it is the host's and not that of one image or one caller."""
        if isinstance(fault, Unconnected):
            self._remember((host, ""), fault)
        elif isinstance(fault, Stalled | Interrupted) and not (isinstance(fault, Busy) and fault.overloaded):
            self._remember((host, registry), fault)

    def answered(self, host: str, registry: str) -> None:
        """Forget its failures."""
        self._failures.pop((host, ""), None)
        self._failures.pop((host, registry), None)

    def _cause(self, key: tuple[str, str]) -> str:
        failure = self._failures.get(key)
        if failure is None:
            return ""
        if self._clock() < failure.until:
            return failure.cause
        self._failures[key] = _Failure(self._clock() + SECONDS, failure.cause)
        return ""

    def _remember(self, key: tuple[str, str], fault: Fault) -> None:
        # Names of registries come from callers: the oldest go.
        self._failures.pop(key, None)
        while len(self._failures) >= _MOST:
            del self._failures[next(iter(self._failures))]
        self._failures[key] = _Failure(self._clock() + SECONDS, fault.cause)
