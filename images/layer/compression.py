"""Decompresses layers, a bounded chunk at a time.

The first bytes decide about the compression, as in containerd, because media types often lie. ISA-L inflates
two to three times as fast as zlib, and like zstandard releases the interpreter lock.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import IO, cast

import zstandard
from isal import igzip_lib

from images.image_errors import Corrupt

# A larger buffer than the memory of a new process would cost a page fault for each page.
CHUNK_BYTES = 128 << 10
# A member or frame may give a single byte, or none. Consumers get no smaller pieces than this.
_LEAST = 64 << 10
# Size of the first piece for a new gzip member; unused input is copied.
_FIRST = 1 << 10
# RFC 8878 asks decoders for 8 MiB; zstd's own command line stops at this.
ZSTD_WINDOW_BYTES = 1 << 27
# The type stub calls the class an instance.
_ISAL_ERROR = cast(type[Exception], igzip_lib.error)
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
# Skippable frames (RFC 8878, 3.1.2); estargz-like tools put them first.
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"


def is_packed(head: bytes) -> bool:
    """Whether the head of a file (at least four bytes) shows a compression that plain() reads."""
    return head.startswith((_GZIP, _ZSTD)) or (
        len(head) >= 4 and head[0] & 0xF0 == 0x50 and head[1:4] == _ZSTD_SKIPPABLE
    )


def plain(chunks: Iterable[bytes], subject: str) -> Iterator[bytes]:
    """The decompressed bytes of a gzip, zstd or plain stream, in chunks of up to about CHUNK_BYTES.

    Time is proportional to the input and output, for any division into pieces. Raises Corrupt for damaged or
    truncated input.
    """
    source = iter(chunks)
    head = b""
    for chunk in source:
        head += chunk
        if len(head) >= 4:
            break
    rest = chain((head,), source)
    if head.startswith(_GZIP):
        return _gathered(_gunzip(rest, subject))
    if is_packed(head):
        return _unzstd(rest, subject)
    return _gathered(rest)


def _gathered(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of at least _LEAST bytes, except for the last."""
    short: list[bytes] = []
    size = 0
    for chunk in chunks:
        if not short and len(chunk) >= _LEAST:
            yield chunk
            continue
        short.append(chunk)
        size += len(chunk)
        # Empty chunks count as pieces, too.
        if size >= _LEAST or len(short) >= _LEAST:
            yield b"".join(short)
            short, size = [], 0
    if size:
        yield b"".join(short)


class _Rest:
    """Unread compressed bytes; a member's unused part of a piece is put back."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk = memoryview(b"")
        self._at = 0

    def piece(self, most: int) -> memoryview:
        """The next bytes, at most ``most``; b"": the end."""
        while self._at == len(self._chunk):
            chunk = next(self._chunks, None)
            if chunk is None:
                return memoryview(b"")
            self._chunk, self._at = memoryview(chunk), 0
        piece = self._chunk[self._at : self._at + most]
        self._at += len(piece)
        return piece

    def put_back(self, count: int) -> None:
        """Take the last bytes of the last piece again."""
        self._at -= count


def _gunzip(chunks: Iterator[bytes], subject: str) -> Iterator[bytes]:
    """Members may follow each other (RFC 1952, 2.2), and may be empty.

    ISA-L takes 40 microseconds to begin a member, as long as for 64 KiB; zlib takes one. After a short
    member, the next member is read with zlib.
    """
    rest = _Rest(chunks)
    quick = True
    try:
        while True:
            size = 0
            for chunk in _inflated(rest, subject) if quick else _member(rest, subject):
                size += len(chunk)
                yield chunk
            quick = size >= _LEAST
            if not rest.piece(1):
                return
            rest.put_back(1)
    except (_ISAL_ERROR, zlib.error) as error:
        raise Corrupt("decompress", subject, f"is no proper gzip stream: {error}") from error


def _inflated(rest: _Rest, subject: str) -> Iterator[bytes]:
    inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    most = _FIRST
    while not inflater.eof:
        piece: bytes | memoryview = b""
        if inflater.needs_input:
            piece, most = _next(rest, most, subject), min(2 * most, CHUNK_BYTES)
        yield inflater.decompress(piece, CHUNK_BYTES)
    rest.put_back(len(inflater.unused_data))


def _member(rest: _Rest, subject: str) -> Iterator[bytes]:
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    most = _FIRST
    while not inflater.eof:
        piece, most = _next(rest, most, subject), min(2 * most, _LEAST)
        yield inflater.decompress(piece, CHUNK_BYTES)
        # At the end zlib may report the same bytes as unconsumed and as unused.
        while inflater.unconsumed_tail and not inflater.eof:
            yield inflater.decompress(inflater.unconsumed_tail, CHUNK_BYTES)
    rest.put_back(len(inflater.unused_data))


def _next(rest: _Rest, most: int, subject: str) -> memoryview:
    piece = rest.piece(most)
    if not piece:
        raise Corrupt("decompress", subject, "the gzip stream ends early")
    return piece


class _ChunkReader:
    """A file object over chunks, for zstandard."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._rest = _Rest(chunks)

    def read(self, size: int) -> bytes:
        """Read up to size bytes, possibly fewer."""
        return bytes(self._rest.piece(size))


def _unzstd(chunks: Iterator[bytes], subject: str) -> Iterator[bytes]:
    # The tar reader and the plain digest notice a truncated stream; this code does not.
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    try:
        with decompressor.stream_reader(
            cast(IO[bytes], _ChunkReader(chunks)), read_across_frames=True
        ) as reader:
            while chunk := reader.read(CHUNK_BYTES):
                yield chunk
    except zstandard.ZstdError as error:
        raise Corrupt("decompress", subject, f"is no proper zstd stream: {error}") from error
