"""Reads PAX and GNU headers about the next entry, and weighs their memory."""

from __future__ import annotations

from collections.abc import Callable

from images.image_errors import Unpackable, oversized
from images.layer.stream import PlainStream
from images.layer.tarsparse import MAX_EXTENTS

Weigh = Callable[[int], None]
"""Called with the memory in bytes of headers without an entry yet; may raise Oversized."""
# All PAX and long-name headers of a layer, as multiples of the bound for one header.
HEADERS = 256
ACL_TEXTS = (b"SCHILY.acl.access", b"SCHILY.acl.default")
"""ACLs as text, from star and libarchive; Go's archive/tar and hence other runtimes ignore them."""
# Memory of a record besides its text, and of a number in a sparse map.
_RECORD_BYTES, _NUMBER_BYTES = 200, 64
# One header of each kind may stand before an entry. Further headers are weighed like entries, permanently,
# because no other limit bounds their number.
_FREE_HEADERS, _HEADER_BYTES = 4, 320
# Records are weighed after this many bytes.
_WEIGHED = 64 << 10
_XATTR = b"SCHILY.xattr."
_TEXT = (b"path", b"linkpath", b"GNU.sparse.name")
_SPARSE = (b"GNU.sparse.major", b"GNU.sparse.size", b"GNU.sparse.realsize", b"GNU.sparse.map")
# The known records; others are ignored.
_KNOWN = frozenset((*_TEXT, *_SPARSE, *ACL_TEXTS, b"size", b"uid", b"gid", b"mtime"))


class Extras:
    """Header data about the next entry.

    headers: their number; weight: most memory of the kept data, in bytes.
    """

    __slots__ = ("headers", "link", "name", "pax", "sparse_pairs", "weight", "xattrs")

    def __init__(self) -> None:
        self.headers = self.weight = 0
        self.name: bytes | None = None
        self.link: bytes | None = None
        self.pax: dict[bytes, bytes] = {}
        self.xattrs: dict[bytes, bytes] = {}
        self.sparse_pairs: list[bytes] = []


class HeaderBudget:
    """The budget of all headers of a layer."""

    def __init__(self, header_bytes: int, weigh: Weigh, subject: str) -> None:
        """header_bytes: the bound on one header."""
        self._most = header_bytes
        self._left = HEADERS * header_bytes
        self._excess = 0
        self._weigh = weigh
        self._subject = subject

    def take(self, size: int, extras: Extras) -> None:
        """Count a header of ``size`` bytes before reading it; raises Oversized."""
        self._left -= size
        if size > self._most:
            raise self._oversized(f"a header of {size} bytes, more than {self._most}")
        if self._left < 0:
            raise self._oversized(f"its headers have more than {HEADERS} times {self._most} bytes")
        extras.headers += 1
        if extras.headers > _FREE_HEADERS:
            self._excess += _HEADER_BYTES
        self.weigh(extras.weight + size)

    def weigh(self, kept: int) -> None:
        """Weigh the memory of the data kept for the next entry."""
        self._weigh(self._excess + kept)

    def _oversized(self, cause: str) -> Exception:
        return oversized("read layer", self._subject, cause, "header_bytes")


def read_pax(data: bytes, extras: Extras, stream: PlainStream, weigh: Weigh) -> None:
    """Take the records of a PAX header; raises Unpackable, and weigh's errors."""
    at = 0
    weighed = extras.weight
    while at < len(data):
        space = data.find(b" ", at, at + 20)
        digits = data[at:space]
        if space < 0 or not digits.isdigit():
            raise _bad(stream, "a malformed PAX record")
        end = at + int(digits)
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end > len(data) or end <= space + 1 or data[end - 1 : end] != b"\n" or not equals or not key:
            raise _bad(stream, "a malformed PAX record")
        at = end
        _keep(key, value, extras, stream)
        if extras.weight > weighed + _WEIGHED:
            weighed = extras.weight
            weigh(weighed)
    weigh(extras.weight)


def _keep(key: bytes, value: bytes, extras: Extras, stream: PlainStream) -> None:
    if key.startswith(_XATTR):
        extras.xattrs[key[len(_XATTR) :]] = value
        extras.weight += _RECORD_BYTES + len(key) + len(value)
    elif key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
        extras.sparse_pairs.append(value)
        extras.weight += _NUMBER_BYTES + len(value)
        if len(extras.sparse_pairs) > 2 * MAX_EXTENTS:
            raise _bad(stream, f"a sparse map of more than {MAX_EXTENTS} parts")
    elif key in _KNOWN:
        if key in _TEXT and b"\0" in value:
            raise _bad(stream, "a name with a zero byte")
        if value:
            extras.pax[key] = value
            extras.weight += _RECORD_BYTES + len(value)
        else:
            # An empty value takes a record back (pax, "pax Extended Header").
            extras.pax.pop(key, None)


def _bad(stream: PlainStream, cause: str) -> Unpackable:
    return Unpackable("read layer", stream.subject, f"{cause}, at byte {stream.offset}")
