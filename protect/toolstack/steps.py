"""Steps that run to their end, also when the caller goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from protect.model.errors import ToolstackError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Steps:
    """Owns what is under way."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def run(self, operation: str, subject: str, work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
        """Do ``work``; OSError becomes ToolstackError.  A cancelled caller leaves it running."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._abandon(task, operation, subject)
            raise
        except OSError as error:
            raise ToolstackError(operation, subject, str(error)) from error

    async def wait_for_abandoned(self) -> None:
        """Until every step whose caller was cancelled has ended."""
        if self._abandoned:
            await asyncio.wait(self._abandoned)

    async def wait(self) -> None:
        """Until nothing is under way."""
        while self._running:
            await asyncio.wait(self._running)

    def _abandon(self, task: asyncio.Task[Any], operation: str, subject: str) -> None:
        def report(done: asyncio.Task[Any]) -> None:
            self._abandoned.discard(done)
            if not done.cancelled() and (error := done.exception()):
                log.warning("%s %s, whose caller had gone, failed: %s", operation, subject, error)

        self._abandoned.add(task)
        task.add_done_callback(report)
