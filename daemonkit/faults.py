"""The daemons' errors for their callers.

The daemons raise them; ``daemonkit.rpc.interceptors`` maps each kind to a gRPC status code.
"""

from __future__ import annotations


class Fault(Exception):
    """An operation on a subject failed: the cause, and a hint for the user."""

    def __init__(self, operation: str, subject: str, cause: str, hint: str = "") -> None:
        text = f"{operation} {subject}: {cause}" if subject else f"{operation}: {cause}"
        super().__init__(f"{text} ({hint})" if hint else text)
        self.operation = operation
        self.subject = subject
        self.cause = cause
        self.hint = hint


class Invalid(Fault):
    """The request itself is wrong (INVALID_ARGUMENT)."""


class Missing(Fault):
    """No such object (NOT_FOUND)."""


class Exists(Fault):
    """The object exists already (ALREADY_EXISTS)."""


class Refused(Fault):
    """The state of the object or of the host forbids the operation (FAILED_PRECONDITION)."""


class Exhausted(Fault):
    """A limit would be exceeded (RESOURCE_EXHAUSTED)."""


class TooLate(Fault):
    """The operation took too long (DEADLINE_EXCEEDED)."""


class Unreachable(Fault):
    """A needed service does not answer now; a retry may succeed (UNAVAILABLE)."""


class Denied(Fault):
    """The caller has no permission, or the daemon has none at a registry (PERMISSION_DENIED)."""


class Unsupported(Fault):
    """This daemon or host does not support the operation (UNIMPLEMENTED)."""


class Broken(Fault):
    """An operation failed that must not fail (INTERNAL)."""
