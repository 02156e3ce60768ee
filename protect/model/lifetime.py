"""Ends of domains and their servers, reported by toolstacks; ends of zones and the daemon, for open work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn
from uuid import UUID

from daemonkit.faults import Fault, Refused


class ShutdownReason(Enum):
    """Why a domain ended."""

    POWEROFF = "poweroff"
    REBOOT = "reboot"
    CRASH = "crash"
    DESTROYED = "destroyed"
    RECONNECTED = "its kernel connected a disk anew, which sheds its rates"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DomainDeath:
    """A domain ended; protectd may still have to destroy the domain."""

    uuid: UUID
    reason: ShutdownReason


@dataclass(frozen=True, slots=True)
class ShareEnd:
    """The server of a domain's shared directory ended by itself, and the session with it."""

    uuid: UUID
    session: str
    reason: str


class End:
    """An end, declared once.  Afterwards no work goes on in the ended object."""

    def __init__(self, kind: type[Fault] = Refused) -> None:
        self.cause = ""
        self._kind = kind
        self._declared = asyncio.Event()
        self._bounds: set[asyncio.Timeout] = set()
        self._waited: dict[asyncio.Future[Any], tuple[str, str]] = {}
        """Open answers, with operation and subject.  The end fails all of them."""

    def declare(self, cause: str) -> None:
        """Declare the end; the first cause stays."""
        if not self._declared.is_set():
            self.cause = cause
            self._declared.set()
            for bound in self._bounds:
                bound.reschedule(asyncio.get_running_loop().time())
            for answer, (operation, subject) in self._waited.items():
                if not answer.done():
                    answer.set_exception(self.fault(operation, subject))

    def __bool__(self) -> bool:
        return self._declared.is_set()

    async def wait(self) -> None:
        await self._declared.wait()

    async def raised(self, operation: str, subject: str) -> NoReturn:
        """Wait for the end, then raise its fault.  For ``race`` against work that the end must stop."""
        await self._declared.wait()
        raise self.fault(operation, subject)

    @asynccontextmanager
    async def bounding(self, operation: str, subject: str) -> AsyncIterator[None]:
        """Run the body; the end cancels the body and raises the end's fault.

        An asyncio timeout without a time: much cheaper than a second task for each call.
        """
        self.check(operation, subject)
        try:
            async with asyncio.timeout(None) as bound:
                self._bounds.add(bound)
                try:
                    yield
                finally:
                    self._bounds.discard(bound)
        except (Fault, TimeoutError):
            # The end closes links.  A later error of the body is not the cause.
            self.check(operation, subject)
            raise

    def fail(self, answer: asyncio.Future[Any], operation: str, subject: str) -> None:
        """Fail ``answer`` with the end's fault if the end comes first."""
        self._waited[answer] = (operation, subject)
        answer.add_done_callback(self._waited.pop)

    def check(self, operation: str, subject: str) -> None:
        """Raise the fault if the end has been declared."""
        if self:
            raise self.fault(operation, subject)

    def fault(self, operation: str, subject: str) -> Fault:
        """The fault for callers after the end."""
        return self._kind(operation, subject, self.cause)
