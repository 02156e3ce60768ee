"""Errors of Xen as faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protect.model.errors import DomainGone, ToolstackError
from xenbind import errors


@contextmanager
def xen_faults(operation: str, subject: str) -> Iterator[None]:
    """Raise errors of Xen and of the system as faults."""
    try:
        yield
    except errors.DomainNotFound as error:
        raise DomainGone(operation, subject, "no such domain") from error
    except (errors.XenError, OSError) as error:
        raise ToolstackError(operation, subject, str(error)) from error
