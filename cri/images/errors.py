"""Faults of the image part that callers tell apart."""

from __future__ import annotations

from daemonkit.faults import Denied, Exhausted, Refused, TooLate, Unreachable


class Corrupt(Refused):
    """Bytes do not have the digest, the size or the form that was promised for them."""


class Misdelivered(Corrupt):
    """A host gives other bytes than those it was asked for: its fault, not the image's."""


class Unpackable(Refused):
    """A layer cannot become a filesystem: it breaks the tar format, or asks for the impossible."""


class Oversized(Exhausted):
    """An image passes a configured limit (bytes, ratio, entries)."""


class Interrupted(Unreachable):
    """A host broke off, or cannot serve just now: it may do better at once.

    after: seconds in which it wants to be asked again; None: it does not say.
    """

    def __init__(
        self, operation: str, subject: str, cause: str, hint: str = "", after: float | None = None
    ) -> None:
        super().__init__(operation, subject, cause, hint)
        self.after = after


class Stalled(TooLate):
    """A host has stopped answering, or sends next to nothing."""


class NoRanges(Unreachable):
    """A host does not give a blob from its middle on."""


class Rejected(Denied):
    """A verifier of this host does not let the image in."""


class Cancelled(Exception):
    """The work was called off because nobody waits for it any more; never reaches a caller."""


def disk_full(operation: str, subject: str) -> Exhausted:
    """What is told of a full disk (``daemonkit.disk_space.is_full``)."""
    return Exhausted(operation, subject, "the disk is full", "free space under the state directory")
