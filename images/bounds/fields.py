"""Values as bytes, between the daemon and a worker that may be compromised.

Unlike marshal, pickle and JSON, a reader asks for each value by type and bounds: reading takes time and
memory linear in the bytes, and makes only numbers, texts and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_LARGEST = (1 << 64) - 1
_NUMBER, _DATA = b"n", b"d"
_SIZE = 8


class Malformed(ValueError):
    """The bytes do not have the expected values."""


class FieldWriter:
    """Collects values; ``done`` is their bytes."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def number(self, value: int) -> FieldWriter:
        """Add a number of 64 bits without a sign."""
        self._pieces.append(_NUMBER + value.to_bytes(_SIZE, "little"))
        return self

    def numbers(self, values: Sequence[int]) -> FieldWriter:
        """Add a few numbers, after their count."""
        for value in (len(values), *values):
            self.number(value)
        return self

    def data(self, value: bytes) -> FieldWriter:
        """Add bytes."""
        self._pieces += (_DATA + len(value).to_bytes(_SIZE, "little"), value)
        return self

    def text(self, value: str) -> FieldWriter:
        """Add a text; UnicodeEncodeError for half of a surrogate pair."""
        return self.data(value.encode())

    def texts(self, values: Iterable[str]) -> FieldWriter:
        """Add texts, after their count."""
        found = list(values)
        self.number(len(found))
        for value in found:
            self.text(value)
        return self

    def done(self) -> bytes:
        """All values as bytes, in order."""
        return b"".join(self._pieces)


class FieldReader:
    """Takes values off bytes, in the order of writing; raises Malformed."""

    def __init__(self, untrusted: bytes) -> None:
        self._bytes = untrusted
        self._at = 0

    def number(self, most: int = _LARGEST) -> int:
        """Take a number of at most ``most``."""
        value = self._word(_NUMBER)
        if value > most:
            raise Malformed(f"{value} where at most {most} can be")
        return value

    def flag(self) -> bool:
        """Take a truth value."""
        return bool(self.number(1))

    def numbers(self, count: int, most: int) -> list[int]:
        """Take at most ``count`` numbers of at most ``most``."""
        return [self.number(most) for _ in range(self.number(count))]

    def data(self, most: int = _LARGEST, least: int = 0) -> bytes:
        """Take at least ``least`` and at most ``most`` bytes."""
        size = self._word(_DATA)
        if not least <= size <= min(most, len(self._bytes) - self._at):
            raise Malformed(f"a field of {size} bytes")
        self._at += size
        return self._bytes[self._at - size : self._at]

    def text(self, most: int = _LARGEST) -> str:
        """Take a text of at most ``most`` characters."""
        try:
            value = self.data().decode()
        except UnicodeDecodeError as error:
            raise Malformed("a text is not UTF-8") from error
        if len(value) > most:
            raise Malformed(f"a text is longer than {most}")
        return value

    def printable(self, most: int) -> str:
        """Take a text of at most ``most`` bytes, with "?" for control characters."""
        text = self.data(most).decode("utf-8", "replace")
        return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)

    def texts(self) -> list[str]:
        """Take texts."""
        # Each text has at least a length: a too large count fails at the end of the bytes.
        return [self.text() for _ in range(self.number())]

    def end(self) -> None:
        """Nothing may be left."""
        if self._at != len(self._bytes):
            raise Malformed(f"{len(self._bytes) - self._at} bytes are left")

    def _word(self, kind: bytes) -> int:
        start = self._at + 1
        if self._bytes[self._at : start] != kind or len(self._bytes) < start + _SIZE:
            raise Malformed("another field than was asked for")
        self._at = start + _SIZE
        return int.from_bytes(self._bytes[start : self._at], "little")
