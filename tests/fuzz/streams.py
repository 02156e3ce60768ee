"""Fuzzes exec, attach and port-forward, from a client's bytes to the process or the connection in the zone.

A session is a client's frames, some of them wrong, with flipped bits, in pieces of any size.  Each session
ends normally or as ``ClientGone``, with bounded memory and bounded answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cri.streaming.forwarding.portforward import Style
from cri.streaming.http.negotiate import Chosen
from cri.streaming.job import StreamJob
from cri.streaming.process.command import Command
from cri.streaming.process.copy import copy_streams
from cri.streaming.process.exit_status import ExitStatus
from cri.streaming.spdy.encode import SpdyEncoder
from cri.streaming.spdy.frames import Data, Frame, GoAway, MoreHeaders, Ping, Reset, SynReply, SynStream
from cri.streaming.transport.channels import PROTOCOLS, SubProtocol
from cri.streaming.transport.quota import BufferQuota, PodQuota
from cri.streaming.transport.wire import ClientGone
from daemonkit.loop.fair_scheduler import FairScheduler
from daemonkit.loop.token_bucket import TokenBucket
from tests.support.cri.stream_jobs import ALL, TTY, Echo, Play, echo, forwarding
from xenpod_proto.protect.v1 import protect_pb2 as pb

LIMIT = 4096
_PER_CHUNK = 256
"""Maximum bytes accounted for a chunk of input, beside its data."""
_MESSAGE = 50_000
_PATIENCE = 60.0
_ROUND = 500


class Script:
    """A client that sends the pieces and closes; if the server reads no more, the client hangs up."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = list(pieces)
        self.pod = PodQuota(limit=4 * LIMIT)
        self.quota = BufferQuota(LIMIT, self.pod, TokenBucket(1e9, 1e9))
        self.sent = 0
        self.highest = 0

    async def receive(self) -> bytes:
        assert self.quota.used <= LIMIT, "more is read although too much waits"
        await asyncio.sleep(0)
        return self._pieces.pop(0) if self._pieces else b""

    async def send(self, data: bytes) -> None:
        self.highest = max(self.highest, self.quota.used)
        self.sent += len(data)

    async def hung_up(self) -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Do nothing."""


async def lazy(command: Command) -> ExitStatus:
    """A command that reads nothing."""
    await asyncio.Event().wait()
    raise AssertionError


class Swallowing:
    """A process that takes all its input, and ends at the end of the input."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    async def stdin(self, data: bytes) -> None:
        assert data

    async def stdin_eof(self) -> None:
        self._ended.set()

    async def resize(self, rows: int, columns: int) -> None:
        assert 0 < rows <= 0xFFFF
        assert 0 < columns <= 0xFFFF

    async def outputs(self) -> AsyncIterator[pb.ExecOutput]:
        await self._ended.wait()
        yield pb.ExecOutput(exit=pb.ProcessExit())


async def terminal(command: Command) -> ExitStatus:
    """A command with a terminal; the input is copied as in a zone."""
    process: Any = Swallowing()
    return ExitStatus(await copy_streams(process, command, stdin=True, tty=True))


@dataclass(frozen=True, slots=True)
class Session:
    """A client's bytes in pieces, and their job."""

    pieces: tuple[bytes, ...]
    job: Callable[[], StreamJob]
    chosen: Chosen[Any]


def serve(session: Session) -> None:
    """Serve the client to its end.  AssertionError, or any other exception, is a bug."""

    async def run() -> None:
        wire = Script(session.pieces)
        size = sum(map(len, session.pieces))
        work = session.job().serve(wire, session.chosen, 0.05, asyncio.Event())
        async with asyncio.timeout(_PATIENCE):
            with contextlib.suppress(ClientGone):
                await FairScheduler().share().pay(lambda: work)
        assert wire.highest <= LIMIT + _PER_CHUNK * max(map(len, session.pieces), default=0)
        assert wire.sent <= 64 * size + 4096, "answers are longer than what was asked"
        wire.quota.close()
        assert wire.pod.used == 0

    asyncio.run(run())


_numbers = st.integers(0, 12) | st.sampled_from([99, (1 << 31) - 1])
_names = st.sampled_from(["streamtype", "port", "requestid", "other"])
_values = st.sampled_from(
    ["error", "stdin", "stdout", "stderr", "resize", "data", "80", "81", "0", "x" * 300]
)
_headers = st.dictionaries(_names, st.tuples(_values) | st.tuples(_values, _values), max_size=4)
_input = st.binary(max_size=300) | st.sampled_from([b'{"Width":80,"Height":24}', b"x" * 6000, b""])
_frames = st.one_of(
    st.builds(SynStream, _numbers, _headers, st.booleans(), st.booleans()),
    st.builds(SynReply, _numbers, _headers, st.booleans()),
    st.builds(MoreHeaders, _numbers, _headers, st.booleans()),
    st.builds(Data, _numbers, _input, st.booleans()),
    st.builds(Reset, _numbers, st.integers(0, 9)),
    st.builds(Ping, _numbers),
    st.builds(GoAway, _numbers),
)


@st.composite
def _opened(draw: st.DrawFn) -> list[Frame]:
    """The streams of an exec or of a port-forward, as an honest client opens them."""
    last = draw(st.sampled_from(["stderr", "resize"]))
    kinds = ("error", "stdin", "stdout", last)
    if draw(st.booleans()):
        return [SynStream(2 * n + 1, {"streamtype": (kind,)}) for n, kind in enumerate(kinds)]
    port = {"port": ("80",), "requestid": ("0",)}
    return [SynStream(2 * n + 1, {"streamtype": (kind,), **port}) for n, kind in enumerate(("error", "data"))]


@st.composite
def _spdy(draw: st.DrawFn) -> bytes:
    encoder = SpdyEncoder()
    begin = draw(_opened()) if draw(st.booleans()) else []
    return b"".join(map(encoder.encode, [*begin, *draw(st.lists(_frames, max_size=30))]))


def _message(opcode: int, fin: bool, payload: bytes, mask: bytes) -> bytes:
    """A frame from a client (RFC 6455, section 5.2)."""
    size = len(payload)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + struct.pack(">H", size)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    return bytes(((0x80 if fin else 0) | opcode,)) + length + mask + masked


_numbered = st.sampled_from([b"\0", b"\1", b"\3", b"\4", b"\xff"])
_channels = st.builds(bytes.__add__, _numbered, _input)
_text = st.sampled_from([b"0aGVsbG8=", b"4", b"0?", b"", b"1AAAA"])
_ends = st.sampled_from([b"", b"\x03\xe8", b"\x03\xe8bye", b"\xff\xff"])
_masks = st.binary(min_size=4, max_size=4)
_opcodes = st.sampled_from([0, 1, 2, 2, 2, 2, 9, 10, 3])
_messages = st.builds(_message, _opcodes, st.booleans(), _channels | _text | st.binary(max_size=125), _masks)
_closes = st.builds(_message, st.just(8), st.just(True), _ends, _masks)


@st.composite
def _websocket(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        whole = draw(_spdy())
        cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=4)))
        parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        short = [part[at : at + _MESSAGE] for part in parts for at in range(0, len(part), _MESSAGE)]
        return b"".join(_message(2, True, part, bytes(4)) for part in short)
    frames = draw(st.lists(_messages, max_size=20))
    return b"".join(frames + draw(st.lists(_closes, max_size=1)))


@st.composite
def _pieces(draw: st.DrawFn, data: bytes) -> tuple[bytes, ...]:
    """The bytes with random changes, cut at random places."""
    changed = bytearray(data + draw(st.binary(max_size=40)))
    for _ in range(draw(st.integers(0, 3)) if changed else 0):
        changed[draw(st.integers(0, len(changed) - 1))] ^= 1 << draw(st.integers(0, 7))
    cuts = sorted(draw(st.lists(st.integers(0, len(changed)), max_size=8)))
    ends = [*cuts, len(changed)]
    return tuple(bytes(changed[a:b]) for a, b in zip([0, *cuts], ends, strict=True) if a < b)


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Sessions over both transports, for commands and for port-forwards."""
    websocket = draw(st.booleans())
    pieces = draw(_pieces(draw(_websocket() if websocket else _spdy())))
    if draw(st.booleans()):
        act = draw(st.sampled_from([echo, lazy, terminal]))
        wants = draw(st.sampled_from([ALL, TTY]))
        known = st.sampled_from(list(PROTOCOLS.values())) if websocket else st.just(SubProtocol(4))
        return Session(pieces, lambda: Play().job(act, wants), Chosen(websocket, draw(known), ()))
    style = draw(st.sampled_from(Style)) if websocket else Style.STREAMS
    return Session(pieces, lambda: forwarding(Echo(refuses={81}), (80, 81)), Chosen(websocket, style, ()))


def main(seconds: float) -> None:
    """Try sessions for the given seconds; raises the first failure in its smallest form."""
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:

        @settings(max_examples=_ROUND, deadline=None, database=None)
        @given(sessions())
        def tried(session: Session) -> None:
            serve(session)

        tried()
        rounds += 1
        sys.stdout.write(f"{rounds * _ROUND} sessions\n")
        sys.stdout.flush()
