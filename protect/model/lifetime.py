"""Ends: of domains and what serves them, as toolstacks tell them; of a zone or the daemon, for work in it."""

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
    """A domain ended (it may still have to be destroyed)."""

    uuid: UUID
    reason: ShutdownReason


@dataclass(frozen=True, slots=True)
class ShareEnd:
    """What served a domain's shared directory ended by itself, and with it the session."""

    uuid: UUID
    session: str
    reason: str


class End:
    """An end that is declared once; from then on no work goes on in what has ended."""

    def __init__(self, kind: type[Fault] = Refused) -> None:
        self.cause = ""
        self._kind = kind
        self._declared = asyncio.Event()
        self._bounds: set[asyncio.Timeout] = set()
        self._waited: dict[asyncio.Future[Any], tuple[str, str]] = {}
        """Answers that will not come after the end, with operation and subject."""

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
        """Wait for the end, then raise its fault; for ``race`` against work that must not outlive it."""
        await self._declared.wait()
        raise self.fault(operation, subject)

    @asynccontextmanager
    async def bounding(self, operation: str, subject: str) -> AsyncIterator[None]:
        """Run the body; at the end it is cancelled, and the end's fault raised.

        A timeout without a time of its own: much cheaper than a rival task for each call.
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
            # The end closes links: what the body failed with then is not the cause.
            self.check(operation, subject)
            raise

    def fail(self, answer: asyncio.Future[Any], operation: str, subject: str) -> None:
        """Give ``answer`` the end's fault, should the end come first."""
        self._waited[answer] = (operation, subject)
        answer.add_done_callback(self._waited.pop)

    def check(self, operation: str, subject: str) -> None:
        """Raise the fault if the end has been declared."""
        if self:
            raise self.fault(operation, subject)

    def fault(self, operation: str, subject: str) -> Fault:
        """The fault to raise to callers after the end."""
        return self._kind(operation, subject, self.cause)
