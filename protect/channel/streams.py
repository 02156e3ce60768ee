"""Offsets, credit and resumption of one stream, without input or output (docs/channel.md, Streams).

A receiver or sender outlives connections: after ``disconnected`` it is silent until a CREDIT of the next
connection.
"""

from __future__ import annotations

from dataclasses import dataclass

from protect.channel.frames import WINDOW, violation

CREDIT_STEP = WINDOW // 4
"""Least window growth that is worth a CREDIT: few frames, and the sender never runs dry."""
FARTHEST = 1 << 62
"""Offset limit; no honest peer sends so many bytes (centuries)."""


@dataclass(frozen=True, slots=True)
class Credit:
    """The values of a CREDIT frame; with ``fin`` the numbers mean nothing."""

    consumed: int
    limit: int
    fin: bool = False


class Receiver:
    """An incoming stream.

    ``delivered`` is the offset up to which bytes were delivered in this process.  A resumed sender starts
    again at ``consumed``, which may be less; bytes already delivered are not delivered twice.
    """

    def __init__(self, consumed: int = 0, *, fresh: bool) -> None:
        """``fresh``: created in the current connection, with its first credit."""
        self.consumed = consumed
        self.delivered = consumed
        self.limit = consumed + WINDOW if fresh else consumed
        self._next: int | None = consumed if fresh else None
        self._end: int | None = None
        self._ended_here = False

    @property
    def live(self) -> bool:
        """Whether the stream has had credit in this connection."""
        return self._next is not None

    @property
    def outstanding(self) -> int:
        """Bytes, and one for FIN, that may be under way within the sender's credit."""
        return 0 if self._next is None or self._ended_here else self.limit - self._next + 1

    @property
    def ended(self) -> bool:
        """Whether all bytes and the FIN have come."""
        return self._end is not None and self.delivered == self._end

    def disconnected(self) -> None:
        """Note the end of the connection."""
        self._next = None
        self._ended_here = False

    def resume(self) -> Credit:
        """Ask for all bytes from ``consumed`` on, in a new connection."""
        self._next = self.consumed
        self.limit = self.consumed + WINDOW
        return Credit(self.consumed, self.limit)

    def data(self, offset: int, content: bytes, fin: bool) -> bytes:
        """Take a DATA frame; returns its new bytes.  ProtocolViolation if the frame breaks a rule."""
        if self._next is None:
            raise violation("DATA without credit in this connection")
        if self._ended_here:
            raise violation("DATA after FIN")
        if offset != self._next:
            raise violation(f"DATA at offset {offset}, {self._next} was next")
        end = offset + len(content)
        if end > self.limit:
            raise violation(f"DATA up to {end}, over the credit of {self.limit}")
        if self._end is not None and (end > self._end or (fin and end != self._end)):
            raise violation(f"the stream ended at {self._end} before and at {end} now")
        if fin and end < self.delivered:
            raise violation(f"FIN at {end}, behind {self.delivered} bytes that came before")
        self._next = end
        if fin:
            self._end, self._ended_here = end, True
        new = content[max(0, self.delivered - offset) :]
        self.delivered = max(self.delivered, end)
        return new

    def consume(self, consumed: int) -> None:
        """Note that all bytes before ``consumed`` are consumed for good."""
        if not self.consumed <= consumed <= self.delivered:
            raise ValueError(f"consumed {consumed} is not within {self.consumed} to {self.delivered}")
        self.consumed = consumed

    def due(self) -> Credit | None:
        """The CREDIT to send now, if large enough; call this after every ``data`` and ``consume``.

        After a reconnect the sender repeats bytes that may be consumed already.  The CREDIT never covers more
        than the peer has sent in the current connection.
        """
        if self._next is None:
            return None
        consumed = min(self.consumed, self._next)
        if consumed + WINDOW - self.limit < CREDIT_STEP:
            return None
        self.limit = consumed + WINDOW
        return Credit(consumed, self.limit)


@dataclass(frozen=True, slots=True)
class DataChunk:
    """Bytes to send in one DATA frame."""

    offset: int
    content: bytes
    fin: bool


class Sender:
    """An outgoing stream: keeps the bytes that the peer has not consumed, at most one window."""

    def __init__(self, *, fresh: bool) -> None:
        """Not ``fresh``: an earlier process may have sent bytes; the peer's CREDIT says how many."""
        self._base: int | None = 0 if fresh else None
        self._kept = bytearray()
        self._sent = 0
        self._highest = 0
        self._limit = WINDOW if fresh else 0
        self._live = fresh
        self._closing = False
        self._fin_sent = False
        self.over = False
        """Whether the peer has taken all bytes, or wants no more."""

    @property
    def space(self) -> int:
        """Number of bytes that may be added now."""
        return 0 if self.closed else WINDOW - len(self._kept)

    @property
    def closed(self) -> bool:
        """Whether no more bytes can be added."""
        return self.over or self._closing

    @property
    def unconsumed(self) -> int:
        """Number of bytes that the peer has not consumed."""
        return len(self._kept)

    def add(self, content: bytes) -> None:
        """Queue bytes, at most ``space``."""
        if len(content) > self.space:
            raise ValueError(f"{len(content)} bytes where {self.space} may be added")
        self._kept += content

    def close(self) -> None:
        """End the stream: FIN follows the last byte."""
        self._closing = True

    def disconnected(self) -> None:
        """Note the end of the connection."""
        self._live = False
        self._fin_sent = False

    @property
    def ready(self) -> bool:
        """Whether ``take`` would return a chunk."""
        if self.over or not self._live or self._base is None or self._fin_sent:
            return False
        end = self._base + len(self._kept)
        return min(end, self._limit) > self._sent or (self._closing and self._sent == end)

    def take(self, most: int) -> DataChunk | None:
        """The next bytes to send, at most ``most``; None without bytes or credit."""
        if not self.ready or self._base is None:
            return None
        end = self._base + len(self._kept)
        stop = min(end, self._limit, self._sent + most)
        content = bytes(self._kept[self._sent - self._base : stop - self._base])
        chunk = DataChunk(self._sent, content, self._closing and stop == end)
        self._sent, self._fin_sent = stop, chunk.fin
        self._highest = max(self._highest, stop)
        return chunk

    def knows(self, credit: Credit) -> bool:
        """Whether this CREDIT of the current connection changes nothing."""
        same = (credit.consumed, credit.limit) == (self._base, self._limit)
        return self._live and same and not credit.fin

    def credit(self, credit: Credit) -> None:
        """Take the peer's CREDIT; ProtocolViolation if it breaks a rule."""
        if credit.fin:
            self.over = True
            self._kept.clear()
            return
        if credit.limit > FARTHEST:
            raise violation(f"CREDIT of {credit.limit} bytes")
        if self._base is None:
            self._base = self._highest = credit.consumed
        known = self._sent if self._live else self._highest
        if not self._base <= credit.consumed <= known:
            raise violation(f"CREDIT says consumed {credit.consumed}, not within {self._base} to {known}")
        if self._live and credit.limit < self._limit:
            raise violation(f"CREDIT takes the limit back from {self._limit} to {credit.limit}")
        del self._kept[: credit.consumed - self._base]
        self._base, self._limit = credit.consumed, credit.limit
        if not self._live:
            self._live, self._sent = True, credit.consumed
