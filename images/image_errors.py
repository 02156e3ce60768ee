"""Faults that callers of the image part distinguish."""

from __future__ import annotations

from daemonkit.faults import Denied, Exhausted, Refused, TooLate, Unreachable


class Corrupt(Refused):
    """Bytes do not have the promised digest, size or form."""


class Damaged(Corrupt):
    """Bytes kept on this host have changed; the registry is not at fault."""


class Misdelivered(Corrupt):
    """A host sent other bytes than requested; the host is at fault, not the image."""


class Unpackable(Refused):
    """A layer cannot become a filesystem: the layer violates the tar format, or contains the impossible."""


class Oversized(Exhausted):
    """An image is beyond a limit."""


class Interrupted(Unreachable):
    """A host broke off, or cannot serve right now: a retry may succeed.

    after: seconds to wait, from Retry-After; None: unknown.
    """

    def __init__(
        self, operation: str, subject: str, cause: str, hint: str = "", after: float | None = None
    ) -> None:
        super().__init__(operation, subject, cause, hint)
        self.after = after


class Busy(Interrupted):
    """A host cannot serve right now (408, 429, 500, 502, 503, 504).

    overloaded: the host only limits the rate of requests (408, 429), and may be healthy.
    """

    def __init__(
        self,
        operation: str,
        subject: str,
        cause: str,
        hint: str = "",
        after: float | None = None,
        overloaded: bool = False,
    ) -> None:
        super().__init__(operation, subject, cause, hint, after)
        self.overloaded = overloaded


class Unconnected(Unreachable):
    """No connection to a host is possible: no listener, route, name or trust."""


class Stalled(TooLate):
    """A host stopped answering, or sends next to nothing."""


class NoRanges(Unreachable):
    """A host cannot send the rest of a blob from a given byte."""


class NotKept(Refused):
    """The host lacks parts for a rebuild; a pull can fetch the rest."""


class DiskFull(Exhausted):
    """No space is left for the store."""


class Rejected(Denied):
    """A verifier on this host rejected the image."""


class Cancelled(Exception):
    """A thread stops because its work was cancelled; never reaches a caller of WorkerThreads.run."""


def oversized(operation: str, subject: str, cause: str, key: str, table: str = "images.limits") -> Oversized:
    """The fault for an image beyond a configured limit; key: the limit's setting."""
    return Oversized(operation, subject, cause, f"{table}.{key} in cri.toml is the limit")


def disk_full(operation: str, subject: str) -> DiskFull:
    """The fault for a full disk (see ``daemonkit.host.disk_space.is_full``)."""
    return DiskFull(operation, subject, "the disk is full", "free space under the state directory")
