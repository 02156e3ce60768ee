"""Errors of the host's system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protect.model.errors import ToolstackError


@contextmanager
def system_faults(operation: str, subject: str) -> Iterator[None]:
    """Errors of the system as faults."""
    try:
        yield
    except OSError as error:
        raise ToolstackError(operation, subject, str(error)) from error
