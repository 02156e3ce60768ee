"""Values as bytes, between the daemon and a worker that may have been taken over.

Unlike marshal, pickle and JSON, a reader asks for each value by its type: it takes time and memory linear in
the bytes, and makes nothing but numbers, texts and bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

_NUMBER = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")


class Malformed(ValueError):
    """Bytes are not the values that the reader asks for."""


class FieldWriter:
    """Collects values; ``done`` is their bytes."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def number(self, value: int) -> None:
        """Add a number of 64 bits without a sign."""
        self._pieces.append(_NUMBER.pack(value))

    def data(self, value: bytes) -> None:
        """Add bytes."""
        self._pieces += (_LENGTH.pack(len(value)), value)

    def text(self, value: str) -> None:
        """Add a text; UnicodeEncodeError for half of a surrogate pair."""
        self.data(value.encode())

    def texts(self, values: Iterable[str]) -> None:
        """Add texts and their number."""
        found = list(values)
        self.number(len(found))
        for value in found:
            self.text(value)

    def done(self) -> bytes:
        """All of them, in their order."""
        return b"".join(self._pieces)


class FieldReader:
    """Takes values off bytes, in the order in which they were written; raises Malformed."""

    def __init__(self, untrusted: bytes) -> None:
        self._bytes = untrusted
        self._at = 0

    def number(self) -> int:
        """Take a number of 64 bits."""
        value: int = _NUMBER.unpack(self._take(_NUMBER.size))[0]
        return value

    def data(self) -> bytes:
        """Take bytes."""
        return self._take(_LENGTH.unpack(self._take(_LENGTH.size))[0])

    def text(self, most: int | None = None) -> str:
        """Take a text, of so many characters at most."""
        try:
            value = self.data().decode()
        except UnicodeDecodeError as error:
            raise Malformed("a text is not UTF-8") from error
        if most is not None and len(value) > most:
            raise Malformed(f"a text is longer than {most}")
        return value

    def texts(self) -> list[str]:
        """Take texts."""
        # Each takes a length at least: a number that promises more ends with the bytes.
        return [self.text() for _ in range(self.number())]

    def end(self) -> None:
        """Nothing may be left."""
        if self._at != len(self._bytes):
            raise Malformed(f"{len(self._bytes) - self._at} bytes are left")

    def _take(self, size: int) -> bytes:
        taken = self._bytes[self._at : self._at + size]
        if len(taken) != size:
            raise Malformed("the bytes end in the middle of a value")
        self._at += size
        return taken
