"""Header blocks: name/value pairs, compressed by zlib with SPDY's dictionary (section 2.6.10).

All blocks of one direction form one zlib stream.
"""

from __future__ import annotations

import struct
import zlib
from functools import cache
from importlib import resources

from cri.streaming.spdy.frames import Headers, SpdyError

MAX_BLOCK_BYTES = 4 * 1024
"""Bytes of a header block, unpacked: a few kilobytes of zlib could become megabytes."""
MAX_HEADERS = 64
"""Maximum of names in a block, and of values."""

_LENGTH = struct.Struct(">I")


@cache
def dictionary() -> bytes:
    """The dictionary of both ends' compressors at the start."""
    return resources.files(__package__).joinpath("header-dictionary.bin").read_bytes()


class Compressor:
    """The zlib stream of one direction."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj(zlib.Z_BEST_COMPRESSION, zdict=dictionary())

    def pack(self, headers: Headers) -> bytes:
        """The next block."""
        parts = [_LENGTH.pack(len(headers))]
        for name, values in headers.items():
            for text in (name.lower(), "\0".join(values)):
                raw = text.encode("latin-1")
                parts += (_LENGTH.pack(len(raw)), raw)
        return self._zlib.compress(b"".join(parts)) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


class Decompressor:
    """The zlib stream of one direction."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zdict=dictionary())

    def unpack(self, block: bytes) -> Headers:
        """The headers of the next block; SpdyError for garbage, and for more than the limits."""
        try:
            plain = self._zlib.decompress(block, MAX_BLOCK_BYTES + 1)
        except zlib.error as error:
            raise SpdyError(f"header block: {error}") from None
        if len(plain) > MAX_BLOCK_BYTES or self._zlib.unconsumed_tail:
            raise SpdyError(f"header block of more than {MAX_BLOCK_BYTES} bytes")
        if self._zlib.eof:
            raise SpdyError("header block ends its compression")
        return parse(plain)


def parse(plain: bytes) -> Headers:
    """The pairs of an unpacked block; SpdyError unless the block is exactly well-formed."""
    reader = _BlockReader(plain)
    count = reader.number()
    if count > MAX_HEADERS:
        raise SpdyError(f"{count} headers are more than {MAX_HEADERS}")
    headers: dict[str, tuple[str, ...]] = {}
    for _ in range(count):
        name = reader.text()
        if not name or name != name.lower() or name in headers:
            raise SpdyError(f"header name {name!r:.60} is empty, not lower-case, or there twice")
        values = reader.text()
        if values.count("\0") >= MAX_HEADERS:
            raise SpdyError(f"more than {MAX_HEADERS} values of a header")
        headers[name] = tuple(values.split("\0"))
    if not reader.exhausted:
        raise SpdyError("bytes after the last header")
    return headers


class _BlockReader:
    """Reads numbers and texts from a block."""

    def __init__(self, plain: bytes) -> None:
        self._plain = plain
        self._at = 0

    @property
    def exhausted(self) -> bool:
        return self._at == len(self._plain)

    def number(self) -> int:
        return int(_LENGTH.unpack(self._take(_LENGTH.size))[0])

    def text(self) -> str:
        return self._take(self.number()).decode("latin-1")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._plain):
            raise SpdyError("header block ends too early")
        taken = self._plain[self._at : end]
        self._at = end
        return taken
