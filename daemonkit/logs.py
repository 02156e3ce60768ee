"""Logging to stderr: one line per entry, ``message key=value ...``, with journald's levels.

Usage: ``log.info("zone runs", extra=fields(zone=zone.id, seconds=0.12))``.  Control characters are escaped:
text from a zone or an image cannot forge a line.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

LEVELS = ("debug", "info", "warning", "error")
_FIELDS = "xenpod_fields"
_VALUE_LIMIT = 2048
# Loggers that repeat themselves while a peer is away.
_SPARSE = frozenset({"opentelemetry"})
_SPARSE_SECONDS = 60.0
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
# Loggers too verbose at info; they repeat the daemon's own logs about connections.
_QUIET = frozenset({"urllib3", "oras", "pyroute2", "asyncio", "grpc"})
_told: dict[str, float] = {}
"""The last time of each sparse logger."""
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:@+,%")


def fields(**values: object) -> Mapping[str, object]:
    """Make the ``extra`` of a log call; values appear as ``key=value``."""
    return {_FIELDS: values}


def setup(level: str = "info") -> None:
    """Log to stderr everything of at least ``level``: debug, info, warning or error; ValueError otherwise."""
    if level.lower() not in LEVELS:
        raise ValueError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(journal=_stderr_is_journal()))
    # Not by the levels of their loggers: pyroute2 resets its own level at import, possibly later.
    handler.addFilter(_worth_a_line)
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level.upper())


def _worth_a_line(record: logging.LogRecord) -> bool:
    top = record.name.partition(".")[0]
    if top in _SPARSE:
        last = _told.get(record.name, -_SPARSE_SECONDS)
        if record.levelno < logging.WARNING or record.created - last < _SPARSE_SECONDS:
            return False
        _told[record.name] = record.created
    return record.levelno >= logging.WARNING or top not in _QUIET


class LineFormatter(logging.Formatter):
    """Formats an entry as one line; a traceback follows, indented."""

    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.name}: {_escape(record.getMessage())}"
        values = getattr(record, _FIELDS, {})
        line += "".join(f" {key}={_quote(value)}" for key, value in values.items())
        if record.exc_info:
            line += "\n" + _indent(self.formatException(record.exc_info))
        if not self._journal:
            when = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
            return f"{when}.{int(record.msecs):03d} {record.levelname.lower()} {line}"
        # sd-daemon(3): each line carries its own priority
        return "\n".join(f"<{_PRIORITY.get(record.levelno, 6)}>{part}" for part in line.split("\n"))


def _quote(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)[:_VALUE_LIMIT]
    return text if text and _PLAIN.issuperset(text) else '"' + _escape(text).replace('"', '\\"') + '"'


def _escape(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _indent(text: str) -> str:
    return "\n".join("  " + _escape(line) for line in text.split("\n"))


def _stderr_is_journal() -> bool:
    """JOURNAL_STREAM has the device and inode of the journal's stream (systemd.exec(5))."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(sys.stderr.fileno())
        return (status.st_dev, status.st_ino) == (int(device), int(inode))
    except (OSError, ValueError):
        return False
