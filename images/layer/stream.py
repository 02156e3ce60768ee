"""A stream of plain bytes for the tar reader."""

from __future__ import annotations

from collections.abc import Iterator

from images.image_errors import Unpackable


class PlainStream:
    """Gives exact numbers of bytes from chunks of any length."""

    def __init__(self, chunks: Iterator[bytes], subject: str) -> None:
        self._chunks = chunks
        self._chunk = b""
        self._at = 0
        self.offset = 0
        self.subject = subject

    def take(self, size: int) -> bytes:
        """Up to size bytes; fewer only at the end of the stream."""
        data = self._chunk[self._at : self._at + size]
        self._at += len(data)
        self.offset += len(data)
        if len(data) == size:
            return data
        pieces, left = [data], size - len(data)
        while left and self._refill():
            pieces.append(self._chunk[:left])
            self._at = len(pieces[-1])
            self.offset += self._at
            left -= self._at
        return b"".join(pieces)

    def exactly(self, size: int) -> bytes:
        """Exactly size bytes; raises Unpackable when the stream ends earlier."""
        data = self.take(size)
        if len(data) < size:
            raise Unpackable("read layer", self.subject, f"ends inside an entry, at byte {self.offset}")
        return data

    def skip(self, size: int) -> None:
        """Skip size bytes; raises Unpackable when the stream ends earlier."""
        end = self.offset + size
        while True:
            here = min(end - self.offset, len(self._chunk) - self._at)
            self._at += here
            self.offset += here
            if self.offset == end:
                return
            if not self._refill():
                raise Unpackable("read layer", self.subject, f"ends inside an entry, at byte {self.offset}")

    def views(self, size: int) -> Iterator[memoryview]:
        """The next size bytes, without a copy."""
        end = self.offset + size
        while self.offset < end:
            if self._at == len(self._chunk) and not self._refill():
                raise Unpackable("read layer", self.subject, f"ends inside an entry, at byte {self.offset}")
            view = memoryview(self._chunk)[self._at : self._at + end - self.offset]
            self._at += len(view)
            self.offset += len(view)
            yield view

    def drain(self) -> None:
        """Read to the end: the digests cover bytes after the archive, too."""
        while self._refill():
            self.offset += len(self._chunk)
            self._at = len(self._chunk)

    def _refill(self) -> bool:
        for chunk in self._chunks:
            if chunk:
                self._chunk, self._at = chunk, 0
                return True
        self._chunk, self._at = b"", 0
        return False
