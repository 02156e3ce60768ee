"""The audit log of a daemon: entries wait in memory, and one thread writes them."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from prometheus_client import Counter

from daemonkit.observe.audit.chain import LINE_BYTES
from daemonkit.observe.audit.journal import AuditJournal
from daemonkit.observe.audit.log_files import AuditFiles
from daemonkit.observe.callers import Caller
from daemonkit.observe.metrics import REGISTRY
from daemonkit.observe.observe_settings import AuditConfig, AuditDestination

log = logging.getLogger(__name__)

ENTRIES = Counter("xenpod_audit_entries", "Entries of the audit log.", registry=REGISTRY)
LOST = Counter("xenpod_audit_lost", "Entries of the audit log that could not be written.", registry=REGISTRY)
WAITING_EVENTS = 1024
"""Limit of waiting entries, of at most about 16 KiB each in memory."""

_BATCH_EVENTS = 256
_GATHER_SECONDS = 0.1
"""Seconds for which an entry waits for others; a killed daemon loses this much."""
_LONGEST = LINE_BYTES // 2


class AuditSink(Protocol):
    """Where entries go."""

    def append(self, entries: Iterable[dict[str, object]]) -> None:
        """OSError: the entries cannot be written."""
        ...

    def close(self) -> None: ...


class AuditLog:
    """Takes entries; never waits for the disk."""

    def __init__(self, daemon: str, sink: AuditSink, *, commands: bool = False) -> None:
        self.commands = commands
        self.pod_of: Callable[[str], str] = lambda _: ""
        """The pod, as ``namespace/name``, of the object with this id; set by the daemon."""
        self._daemon = daemon
        self._sink = sink
        self._waiting: deque[dict[str, object]] = deque()
        self._changed = threading.Condition()
        self._lost = 0
        self._closing = False
        self._told = False
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def add(
        self, rpc: str, caller: Caller, pod: str, said: dict[str, object], code: str, seconds: float
    ) -> None:
        """Add the entry of an ended call; ``said``: ``request`` and ``reply``, redacted."""
        now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="microseconds")
        entry: dict[str, object] = {
            "time": now,
            "daemon": self._daemon,
            "rpc": rpc,
            "caller": asdict(caller),
            "pod": pod,
            **said,
            "code": code,
            "us": round(seconds * 1e6),
        }
        if len(json.dumps(entry)) > _LONGEST:
            entry |= dict.fromkeys(said, "<too long>")
        with self._changed:
            if len(self._waiting) >= WAITING_EVENTS:
                self._lose(1)
                return
            self._waiting.append(entry)
            self._changed.notify()

    def close(self) -> None:
        """Write waiting entries, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._sink.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                # Batch entries: a write waits for the disk, but no caller waits for the write.
                self._changed.wait_for(
                    lambda: len(self._waiting) >= _BATCH_EVENTS or self._closing, _GATHER_SECONDS
                )
                batch = [self._waiting.popleft() for _ in range(min(_BATCH_EVENTS, len(self._waiting)))]
                if not batch:
                    return
                lost, self._lost = self._lost, 0
            self._write(batch, lost)

    def _write(self, batch: list[dict[str, object]], lost: int) -> None:
        if lost:
            batch[0]["lost"] = lost
        try:
            self._sink.append(batch)
        except OSError as error:
            with self._changed:
                self._lose(len(batch))
                self._lost += lost
            if not self._told:
                log.error("audit entries are lost: %s", error.strerror or error)
            self._told = True
            return
        self._told = False
        ENTRIES.inc(len(batch))

    def _lose(self, count: int) -> None:
        """Count lost entries; the next written entry reports the number missing before it."""
        self._lost += count
        LOST.inc(count)


@asynccontextmanager
async def auditing(config: AuditConfig, daemon: str, state_dir: Path) -> AsyncIterator[AuditLog | None]:
    """The audit log while the block runs; None: off.

    Broken: the log cannot be opened, and the daemon should not serve without it.
    """
    if config.to is AuditDestination.OFF:
        yield None
        return
    folder = config.dir or state_dir / "audit"
    sink: AuditSink
    if config.to is AuditDestination.FILE:
        sink = await asyncio.to_thread(AuditFiles, folder / daemon, config.file_size, config.files)
    else:
        sink = await asyncio.to_thread(AuditJournal, folder / daemon)
    audit = AuditLog(daemon, sink, commands=config.commands)
    try:
        yield audit
    finally:
        await asyncio.to_thread(audit.close)
