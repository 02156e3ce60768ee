"""The errors that the daemons report to their callers.

Code of the daemons raises them; ``daemonkit.rpc.interceptors`` turns each kind into one gRPC status code.
"""

from __future__ import annotations


class Fault(Exception):
    """An operation on a subject failed: why, and a hint at what to do about it."""

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
    """The state of the object or of the host does not allow it (FAILED_PRECONDITION)."""


class Exhausted(Fault):
    """A limit would be exceeded (RESOURCE_EXHAUSTED)."""


class TooLate(Fault):
    """It took too long (DEADLINE_EXCEEDED)."""


class Unreachable(Fault):
    """A service it needs does not answer now; a retry may succeed (UNAVAILABLE)."""


class Denied(Fault):
    """The caller has no permission, or we have none at a registry (PERMISSION_DENIED)."""


class Unsupported(Fault):
    """This daemon or host cannot do it (UNIMPLEMENTED)."""


class Broken(Fault):
    """Something failed that must not fail (INTERNAL)."""
