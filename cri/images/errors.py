"""Faults of the image part that callers tell apart."""

from __future__ import annotations

from daemonkit.faults import Exhausted, Refused


class Corrupt(Refused):
    """Bytes do not have the digest, the size or the form that was promised for them."""


class Unpackable(Refused):
    """A layer cannot become a filesystem: it breaks the tar format, or asks for the impossible."""


class Oversized(Exhausted):
    """An image passes a configured limit (bytes, ratio, entries)."""


class Cancelled(Exception):
    """The work was called off because nobody waits for it any more; never reaches a caller."""
