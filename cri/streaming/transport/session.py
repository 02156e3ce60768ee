"""The server's side of a SPDY connection: the client opens streams, and tasks read and write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cri.streaming.spdy.decode import SpdyDecoder
from cri.streaming.spdy.encode import SpdyEncoder
from cri.streaming.spdy.frames import (
    Data,
    Frame,
    GoAway,
    Headers,
    MoreHeaders,
    Ping,
    Reset,
    ResetStatus,
    SpdyError,
    SynReply,
    SynStream,
)
from cri.streaming.transport.inbox import Inbox
from cri.streaming.transport.quota import STREAM_BYTES
from cri.streaming.transport.wire import ClientGone, ClientWire, without_effect
from daemonkit.loop.fair_scheduler import pause
from daemonkit.tasks import race

MANY = 1024
"""Bytes of data after the end of a stream that do not count as a frame without effect."""
MOST_STREAMS = 512
"""Maximum of open streams; each connection of a port-forward needs two."""

Accept = Callable[["SpdyStream"], bool]
"""Decides whether a new stream is wanted; called once for each."""


class SpdyStream:
    """Both directions of one stream."""

    def __init__(self, session: SpdySession, number: int, headers: Headers) -> None:
        self.number = number
        self.headers = headers
        self.input = Inbox(session.quota)
        self.remote_done = False
        self.local_done = False
        self.reset_by_peer = asyncio.Event()
        self._session = session

    def header(self, name: str) -> str:
        """A header's first value, or ""."""
        return self.headers.get(name, ("",))[0]

    async def read(self) -> bytes:
        """Read input; b"" at the end."""
        return await self.input.read()

    async def write(self, data: bytes) -> None:
        """Write, back-pressured by the connection; ClientGone: the client wants no more."""
        if self.local_done:
            raise ClientGone(f"stream {self.number} is closed")
        if data:
            await self._session.send(Data(self.number, data))

    async def finish(self) -> None:
        """End our direction; a second call does nothing."""
        if not self.local_done:
            self.local_done = True
            self._session.forget_if_done(self)
            await self._session.send(Data(self.number, b"", fin=True))

    async def reset(self, status: ResetStatus = ResetStatus.CANCEL) -> None:
        """End both directions; no effect after the end of both."""
        if not (self.local_done and self.remote_done):
            self.ended()
            await self._session.send(Reset(self.number, status))

    def ended(self) -> None:
        """Mark both directions as ended (for the session)."""
        self.local_done = self.remote_done = True
        self.input.discard()
        self._session.forget_if_done(self)


class SpdySession:
    """``run`` reads until the client is gone; ``accept`` decides about each new stream."""

    def __init__(self, wire: ClientWire, accept: Accept, *, streams: int = MOST_STREAMS) -> None:
        self.quota = wire.quota
        self._wire = wire
        self._accept = accept
        self._most = streams
        self._decoder = SpdyDecoder()
        self._encoder = SpdyEncoder()
        self._streams: dict[int, SpdyStream] = {}
        self._last = 0

    async def run(self) -> None:
        """Read until the client has closed; ClientGone: the connection or the protocol broke."""
        try:
            while data := await self._receive():
                with self.quota.batch():
                    for frame in self._decoder.feed(data):
                        if isinstance(frame, GoAway):
                            return
                        if not await self._take(frame):
                            await without_effect(self._wire)
                        await pause()
        except SpdyError as error:
            raise ClientGone(f"not SPDY: {error}") from None
        finally:
            for stream in list(self._streams.values()):
                stream.input.end()

    async def send(self, frame: Frame) -> None:
        """Send a frame, encoded and queued at once: frames keep their order."""
        await self._wire.send(self._encoder.encode(frame))

    async def goodbye(self) -> None:
        """End all streams, and send GOAWAY."""
        for stream in list(self._streams.values()):
            stream.input.discard()
            await stream.finish()
        await self.send(GoAway(self._last))

    def forget_if_done(self, stream: SpdyStream) -> None:
        if stream.local_done and stream.remote_done and stream.number in self._streams:
            del self._streams[stream.number]
            self.quota.release(STREAM_BYTES)

    async def _receive(self) -> bytes:
        """Wait for space, then read.  A client that hangs up before is gone, even with unread input."""
        if not self.quota.space.is_set() and not await race(self.quota.space.wait(), self._wire.hung_up()):
            raise ClientGone("it hung up")
        return await self._wire.receive()

    async def _take(self, frame: Frame) -> bool:
        """Carry out a frame; False: no effect on any stream."""
        match frame:
            case Data(number, data, fin):
                return await self._data(number, data, fin)
            case SynStream():
                return await self._syn(frame)
            case Reset(number):
                if stream := self._streams.get(number):
                    stream.reset_by_peer.set()
                    stream.ended()
                    return True
            case MoreHeaders(number, _, fin):
                if fin and (stream := self._streams.get(number)) and not stream.remote_done:
                    self._finished(stream)
                    return True
            case Ping(number):
                if number % 2:  # odd: the client's own; ours are never sent
                    await self.send(frame)
        return False

    async def _data(self, number: int, data: bytes, fin: bool) -> bool:
        stream = self._streams.get(number)
        if stream is None or stream.remote_done:
            if number > self._last:
                await self.send(Reset(number, ResetStatus.INVALID_STREAM))
                return False
            # A stream that we have ended: its client could not know.  Larger data costs us next to nothing.
            return len(data) >= MANY
        stream.input.put(data)
        if fin:
            self._finished(stream)
        return fin or bool(data)

    def _finished(self, stream: SpdyStream) -> None:
        stream.remote_done = True
        stream.input.end()
        self.forget_if_done(stream)

    async def _syn(self, frame: SynStream) -> bool:
        if frame.stream % 2 == 0 or frame.stream <= self._last:
            raise SpdyError(f"stream {frame.stream} after {self._last}")
        self._last = frame.stream
        stream = SpdyStream(self, frame.stream, frame.headers)
        stream.local_done = frame.unidirectional
        if len(self._streams) >= self._most or self.quota.pod_half_full or not self._accept(stream):
            await self.send(Reset(frame.stream, ResetStatus.REFUSED_STREAM))
            return False
        self._streams[frame.stream] = stream
        self.quota.hold(STREAM_BYTES)
        if frame.fin:
            self._finished(stream)
        await self.send(SynReply(frame.stream))
        return True
