"""The signal that reconciliation has work to finish."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Set by failed steps, awaited and cleared by reconciliation."""

    event: asyncio.Event = field(default_factory=asyncio.Event)

    def set(self) -> None:
        """Have reconciliation compare all records with reality."""
        self.event.set()

    def left_over(self, kind: str, record_id: str, fault: Fault) -> None:
        """Note that a half-made pod or container could not be removed.  Reconciliation tries again."""
        log.error("a half-made %s is left over: %s", kind, fault, extra=fields(id=record_id))
        self.event.set()
