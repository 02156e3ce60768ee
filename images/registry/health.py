"""Remembers recently failed hosts; they are asked last."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from daemonkit.faults import Fault
from images.image_errors import Busy, Interrupted, Stalled, Unconnected

FAILED_SECONDS = 60.0
"""Seconds for which a failed host is asked last; afterwards a caller tries the host in its usual place."""
_MOST_HOSTS = 4096


@dataclass(frozen=True, slots=True)
class _Failure:
    """until: when one caller may try again (monotonic seconds); cause: the host's failure."""

    until: float
    cause: str


class HostHealth:
    """The failures of hosts, remembered for a while; used on the event loop.

    A host without a connection has failed for all registries.  A host that stalled, broke off or answered 5xx
    has failed for one registry only: a mirror of several registries passes on their servers' errors, and the
    owner of one registry must not block the mirror for the others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[tuple[str, str], _Failure] = {}

    def failure(self, host: str, registry: str) -> str:
        """The recent failure of a host; "" to ask the host in its usual place.

        After FAILED_SECONDS the first caller gets "" and tries the host; other callers continue without the
        host.
        """
        causes = [self._cause((host, about)) for about in ("", registry)]
        return next(filter(None, causes), "")

    def failed(self, host: str, registry: str, fault: Fault) -> None:
        """Remember a failure, if caused by the host and not by one image or one caller."""
        if isinstance(fault, Unconnected):
            self._remember((host, ""), fault)
        elif isinstance(fault, Stalled | Interrupted) and not (isinstance(fault, Busy) and fault.overloaded):
            self._remember((host, registry), fault)

    def answered(self, host: str, registry: str) -> None:
        """Forget the host's failures."""
        self._failures.pop((host, ""), None)
        self._failures.pop((host, registry), None)

    def _cause(self, key: tuple[str, str]) -> str:
        failure = self._failures.get(key)
        if failure is None:
            return ""
        if self._clock() < failure.until:
            return failure.cause
        self._failures[key] = _Failure(self._clock() + FAILED_SECONDS, failure.cause)
        return ""

    def _remember(self, key: tuple[str, str], fault: Fault) -> None:
        # Registry names come from callers: drop the oldest entries.
        self._failures.pop(key, None)
        while len(self._failures) >= _MOST_HOSTS:
            del self._failures[next(iter(self._failures))]
        self._failures[key] = _Failure(self._clock() + FAILED_SECONDS, fault.cause)
