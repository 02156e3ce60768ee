"""What can go wrong, as the daemons say it to their callers.

Inside the daemons these are raised; ``daemonkit.grpc_server`` turns each kind into one gRPC status code.
"""

from __future__ import annotations


class Fault(Exception):
    """An operation on an object failed for a cause; the hint says what to do about it."""

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
    """The object is there already (ALREADY_EXISTS)."""


class Refused(Fault):
    """The object's or the host's state does not allow it (FAILED_PRECONDITION)."""


class Exhausted(Fault):
    """A limit would be passed (RESOURCE_EXHAUSTED)."""


class TooLate(Fault):
    """It took longer than it may (DEADLINE_EXCEEDED)."""


class Unreachable(Fault):
    """Something needed does not answer now; another try may succeed (UNAVAILABLE)."""


class Denied(Fault):
    """The caller, or we at a registry, may not (PERMISSION_DENIED)."""


class Unsupported(Fault):
    """Not there (UNIMPLEMENTED)."""


class Broken(Fault):
    """Something that must work did not (INTERNAL)."""
