"""Faults of the image part that callers distinguish."""

from __future__ import annotations

from daemonkit.faults import Denied, Exhausted, Refused, TooLate, Unreachable


class Corrupt(Refused):
    """Bytes do not have the digest, size or form that was promised."""


class Damaged(Corrupt):
    """Bytes kept on this host have changed, which is not the registry's fault."""


class Misdelivered(Corrupt):
    """A host sent other bytes than it was asked for, which is its fault, not the image's."""


class Unpackable(Refused):
    """A layer cannot become a filesystem: it breaks the tar format, or asks for the impossible."""


class Oversized(Exhausted):
    """An image is beyond a limit."""


class Interrupted(Unreachable):
    """A host broke off, or cannot serve right now: a retry may succeed.

    after: the seconds it asks us to wait (Retry-After); None: it does not say.
    """

    def __init__(
        self, operation: str, subject: str, cause: str, hint: str = "", after: float | None = None
    ) -> None:
        super().__init__(operation, subject, cause, hint)
        self.after = after


class Busy(Interrupted):
    """A host answers that it cannot serve right now (408, 429, 500, 502, 503, 504).

    overloaded: it only wants to be asked less often (408, 429), which says nothing about its health.
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
    """No connection to a host can be made: it does not listen, or there is no route, name or trust."""


class Stalled(TooLate):
    """A host stopped answering, or sends next to nothing."""


class NoRanges(Unreachable):
    """A host cannot send a blob from its middle on."""


class NotKept(Refused):
    """Something cannot be rebuilt from what this host keeps; a pull can fetch the rest."""


class DiskFull(Exhausted):
    """No space is left for the store."""


class Rejected(Denied):
    """A verifier on this machine rejected the image."""


class Cancelled(Exception):
    """A thread stops because its work was cancelled; never reaches a caller of WorkerThreads.run."""


def oversized(operation: str, subject: str, cause: str, key: str, table: str = "images.limits") -> Oversized:
    """The fault for an image beyond a configured limit; key: the one to raise."""
    return Oversized(operation, subject, cause, f"{table}.{key} in cri.toml is the limit")


def disk_full(operation: str, subject: str) -> DiskFull:
    """The fault for a full disk (see ``daemonkit.host.disk_space.is_full``)."""
    return DiskFull(operation, subject, "the disk is full", "free space under the state directory")
