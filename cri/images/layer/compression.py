"""Compressed layers to plain bytes, a bounded chunk at a time.

The compression is told by the first bytes, as containerd does, since media types often lie. ISA-L inflates
two to three times as fast as zlib, and like zstandard it runs without the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import IO, cast

import zstandard
from isal import igzip_lib

from cri.images.errors import Corrupt

CHUNK = 1 << 20
# RFC 8878 asks decoders for 8 MiB; zstd's own command line stops at this.
ZSTD_WINDOW = 1 << 27
# Its type stub calls the class an instance.
_ISAL_ERROR = cast(type[Exception], igzip_lib.error)
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
# Skippable frames (RFC 8878, 3.1.2), which estargz-like tools put first.
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"


def is_packed(head: bytes) -> bool:
    """Whether bytes that begin so (at least four of them) are compressed in a way that plain() reads."""
    return head.startswith((_GZIP, _ZSTD)) or (
        len(head) >= 4 and head[0] & 0xF0 == 0x50 and head[1:4] == _ZSTD_SKIPPABLE
    )


def plain(chunks: Iterable[bytes], subject: str) -> Iterator[bytes]:
    """The decompressed bytes of a gzip, zstd or plain stream, in chunks of about CHUNK.

    Raises Corrupt for what is damaged or ends early.
    """
    source = iter(chunks)
    head = b""
    for chunk in source:
        head += chunk
        if len(head) >= 4:
            break
    rest = chain((head,), source)
    if head.startswith(_GZIP):
        return _gunzip(rest, subject)
    if is_packed(head):
        return _unzstd(rest, subject)
    return (chunk for chunk in rest if chunk)


def _gunzip(chunks: Iterator[bytes], subject: str) -> Iterator[bytes]:
    inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    while True:
        pending = b""
        if inflater.eof:
            pending = inflater.unused_data or next(chunks, b"")
            if not pending:
                return
            # Members may follow each other (RFC 1952, 2.2).
            inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        elif inflater.needs_input:
            pending = next(chunks, b"")
            if not pending:
                raise Corrupt("decompress", subject, "the gzip stream ends early")
        try:
            chunk = inflater.decompress(pending, CHUNK)
        except _ISAL_ERROR as error:
            raise Corrupt("decompress", subject, f"is no proper gzip stream: {error}") from error
        if chunk:
            yield chunk


class _ChunkReader:
    """What zstandard reads from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Up to size bytes, as they come."""
        if not self._rest:
            self._rest = next(self._chunks, b"")
        chunk, self._rest = self._rest[:size], self._rest[size:]
        return chunk


def _unzstd(chunks: Iterator[bytes], subject: str) -> Iterator[bytes]:
    # A stream that ends early is not noticed here, but by the tar reader and the plain digest.
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    try:
        with decompressor.stream_reader(
            cast(IO[bytes], _ChunkReader(chunks)), read_across_frames=True
        ) as reader:
            while chunk := reader.read(CHUNK):
                yield chunk
    except zstandard.ZstdError as error:
        raise Corrupt("decompress", subject, f"is no proper zstd stream: {error}") from error
