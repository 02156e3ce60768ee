"""Entries as lines, each with the hash of the line before: removals, changes and moves become visible.

A line is a JSON object that ends with its own hash: the SHA-256 of the text before ``,"hash"``. ``seq``
counts from 1; ``prev`` is the hash of the line before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

GENESIS = "0" * 64
"""``prev`` of the first entry."""
LINE_BYTES = 16 * 1024
"""Most bytes of a line."""

_MARK = b',"hash":"'
_END = b'"}'
_HASH = len(GENESIS)


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A place in a chain: the number of an entry, and its hash."""

    seq: int = 0
    hash: str = GENESIS

    def follow(self, entry: Mapping[str, object]) -> tuple[ChainLink, bytes]:
        """The next link, and the line of its entry, with a newline."""
        whole = {"seq": self.seq + 1, **entry, "prev": self.hash}
        body = json.dumps(whole, separators=(",", ":")).encode()[:-1]
        digest = hashlib.sha256(body).hexdigest()
        return ChainLink(self.seq + 1, digest), body + _MARK + digest.encode() + _END + b"\n"

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


@dataclass(frozen=True, slots=True)
class ChainedLine:
    """The place that a line claims."""

    link: ChainLink
    prev: str


@dataclass(slots=True)
class Verified:
    """Result of a verification: number of entries, first and last link, and all errors."""

    entries: int = 0
    first: int = 0
    last: ChainLink = field(default_factory=ChainLink)
    wrong: list[str] = field(default_factory=list)
    seen: ChainLink | None = None
    """The requested entry, if found."""


def read_line(line: bytes) -> ChainedLine:
    """The place of a line without its newline; ValueError: the line is damaged."""
    at = len(line) - len(_MARK) - _HASH - len(_END)
    if at <= 0 or line[at : at + len(_MARK)] != _MARK or not line.endswith(_END):
        raise ValueError("it does not end with a hash")
    said = line[at + len(_MARK) : -len(_END)].decode("ascii", "replace")
    if hashlib.sha256(line[:at]).hexdigest() != said:
        raise ValueError("its hash is of another text: it was changed")
    entry = json.loads(line[:at] + b"}")
    return ChainedLine(ChainLink(int(entry["seq"]), said), str(entry["prev"]))


def verify(lines: Iterable[bytes], anchor: ChainLink | None = None) -> Verified:
    """Check a chain from its first existing line.  ``anchor``: an entry that must be in the chain."""
    found = Verified()
    before: ChainLink | None = None
    for number, line in enumerate(lines, 1):
        try:
            one = read_line(line.rstrip(b"\n"))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            found.wrong.append(f"line {number}: {error}")
            before = None
            continue
        if before is not None and (one.prev, one.link.seq) != (before.hash, before.seq + 1):
            found.wrong.append(
                f"between entries {before.seq} and {one.link.seq}: something is missing or moved"
            )
        if one.link.seq == 1 and one.prev != GENESIS:
            found.wrong.append("entry 1: it does not begin a chain")
        if anchor is not None and one.link == anchor:
            found.seen = anchor
        found.first = found.first or one.link.seq
        found.entries += 1
        before = found.last = one.link
    if anchor is not None and found.seen is None:
        found.wrong.append(f"entry {anchor.seq} with the hash {anchor.hash[:12]}... is not there")
    return found
