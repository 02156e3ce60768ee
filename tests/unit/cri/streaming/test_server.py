"""The streaming server over loopback; the test plays the command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from wsproto.events import CloseConnection, Ping, TextMessage

from cri.config import StreamingConfig
from cri.streaming.process.command import Command
from cri.streaming.process.copy import Size, Sizes
from cri.streaming.process.exit_status import ExitStatus
from cri.streaming.server import MOST_PENDING, Server, serving_streams
from cri.streaming.spdy.decode import SpdyDecoder
from cri.streaming.spdy.encode import SpdyEncoder
from cri.streaming.spdy.frames import Data, Frame, GoAway, Reset, ResetStatus, SynReply, SynStream
from cri.streaming.spdy.frames import Ping as SpdyPing
from cri.streaming.transport.quota import LIMIT_BYTES, BufferQuota
from cri.streaming.transport.session import SpdySession, SpdyStream
from cri.streaming.transport.wire import READ_BYTES, ClientGone
from daemonkit.faults import Broken
from daemonkit.loop.fair_scheduler import FairScheduler, Share
from tests.support.cri.stream_client import WEBSOCKET, connect, key, path_of, spdy, websocket
from tests.support.cri.stream_jobs import TTY, Play, echo, forever
from tests.support.cri.stream_jobs import streaming_server as server

SUCCESS = {"metadata": {}, "status": "Success"}


@pytest.fixture
async def streaming() -> AsyncIterator[Server]:
    async with server(idle_timeout=30.0) as running:
        yield running


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
async def test_a_command_gets_input_and_output_over_spdy(streaming: Server, protocol: str) -> None:
    client = await spdy(streaming.base, streaming.url(Play().job(echo)), protocol)
    await client.open_all("error", "stdin", "stdout", "stderr")
    content = bytes(range(256)) * 4000
    await client.write("stdin", content)
    await client.write("stdin", b"", fin=True)
    await client.finished("error", "stdout", "stderr", "stdin")
    assert client.text("stdout") == content
    assert client.text("stderr") == b"1024000 bytes"
    assert json.loads(client.text("error"))["details"]["causes"][0]["message"] == "3"
    await client.until(lambda: GoAway(7) in client.others)


@pytest.mark.parametrize("protocol", ["", "channel.k8s.io", "v2.channel.k8s.io", "v3.channel.k8s.io"])
async def test_older_spdy_protocols_tell_failures_as_text(streaming: Server, protocol: str) -> None:
    client = await spdy(streaming.base, streaming.url(Play().job(echo)), protocol)
    await client.open_all("error", "stdin", "stdout", "stderr")
    await client.write("stdin", b"", fin=True)
    await client.finished("error", "stdout", "stderr")
    assert client.text("error") == b"command terminated with non-zero exit code: 3"


class CountingScheduler(FairScheduler):
    """Counts the steps of all clients without a token, and of pods."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: Counter[str] = Counter()
        self.charged = asyncio.Event()

    def charge(self, share: Share, seconds: float) -> None:
        self.steps["pod" if share.weight == 1 else "without a token"] += 1
        self.charged.set()
        super().charge(share, seconds)


@pytest.mark.parametrize(("known", "payer"), [(True, "pod"), (False, "without a token")])
async def test_a_request_with_a_token_is_charged_to_its_pod_after_its_first_line(
    known: bool, payer: str
) -> None:
    """Otherwise a client would wait for the handshakes of all other clients."""
    scheduler = CountingScheduler()
    async with serving_streams(StreamingConfig(), 0.0, scheduler) as streaming:
        url = streaming.url(Play().job(forever))
        line = await connect(streaming.base)
        await line.send(f"POST {path_of(url if known else url[:-1])} HTTP/1.1\r\n".encode())
        for number in range(20):
            before = scheduler.steps.copy()
            scheduler.charged.clear()
            await line.send(f"X-Header-{number}: {number}\r\n".encode())
            await scheduler.charged.wait()
            assert number == 0 or scheduler.steps - before == {payer: 1}
        line.close()


async def test_input_of_a_refused_client_is_charged_to_all_clients_without_a_token() -> None:
    """The server reads the input to its end, or the client would lose the refusal."""
    scheduler = CountingScheduler()
    async with serving_streams(StreamingConfig(), 0.0, scheduler) as streaming:
        line = await connect(streaming.base)
        await line.send(b"GET /exec/unknown HTTP/1.1\r\nHost: test\r\n\r\n")
        assert b" 404 " in await line.reader.readline()
        for _ in range(20):
            scheduler.charged.clear()
            await line.send(b"x")
            await scheduler.charged.wait()
        assert set(scheduler.steps) == {"without a token"}
        line.close()


async def test_a_command_gets_input_and_output_over_websocket(streaming: Server) -> None:
    client = await websocket(streaming.base, streaming.url(Play().job(echo)))
    content = bytes(range(256)) * 1000
    for at in range(0, len(content), 30_000):
        await client.send(b"\0" + content[at : at + 30_000])
    await client.send(b"\xff\0")
    await client.until(lambda: client.closed)
    assert client.messages[0] == b"\1", "an empty message comes first"
    assert client.channel(1) == content
    assert client.channel(2) == b"256000 bytes"
    assert json.loads(client.channel(3))["reason"] == "NonZeroExitCode"
    assert client.closed == 1000


async def test_base64_channels_carry_input_and_output(streaming: Server) -> None:
    async def upper(command: Command) -> ExitStatus:
        assert command.stdin is not None
        await command.stdout((await command.stdin.read()).upper())
        return ExitStatus()

    client = await websocket(streaming.base, streaming.url(Play().job(upper)), "v4.base64.channel.k8s.io")
    await client.send("0aGVsbG8=")
    await client.until(lambda: client.closed)
    assert client.messages[:2] == ["1", "1SEVMTE8="]
    status = client.messages[2]
    assert isinstance(status, str)
    assert status[0] == "3"


@pytest.mark.parametrize("transport", ["spdy", "websocket"])
async def test_a_terminal_is_resized(streaming: Server, transport: str) -> None:
    async def tell(command: Command) -> ExitStatus:
        assert command.resizes is not None
        sizes = Sizes()
        seen: list[Size] = []
        while len(seen) < 2:
            seen += sizes.parse(await command.resizes.read())
        await command.stdout(repr([(size.columns, size.rows) for size in seen]).encode())
        return ExitStatus()

    url = streaming.url(Play().job(tell, TTY))
    one, two = b'{"Width":80,"Height":24}\n', b'{"Width":132,"Height":50}\n'
    if transport == "spdy":
        over_spdy = await spdy(streaming.base, url)
        await over_spdy.open_all("error", "stdin", "stdout", "resize")
        await over_spdy.write("resize", one + two[:5])
        await over_spdy.write("resize", two[5:])
        await over_spdy.finished("stdout")
        assert over_spdy.text("stdout") == b"[(80, 24), (132, 50)]"
    else:
        client = await websocket(streaming.base, url)
        await client.send(b"\4" + one)
        await client.send(b"\4" + two)
        await client.until(lambda: client.closed)
        assert client.channel(1) == b"[(80, 24), (132, 50)]"


async def test_a_url_is_good_once(streaming: Server) -> None:
    play = Play()
    url = streaming.url(play.job(forever))
    first = await websocket(streaming.base, url)
    again = await connect(streaming.base)
    answer = await again.ask(path_of(url), *WEBSOCKET, key())
    assert answer.status == 404
    await play.until(lambda: play.begun == 1)
    first.line.abort()
    await play.until(lambda: play.cancelled == 1)


@pytest.mark.parametrize(
    "path", ["/", "/exec", "/exec/", "/exec/x", f"/exec/{'A' * 48}", "/attach/{token}", "//"]
)
async def test_guessed_urls_are_not_found(streaming: Server, path: str) -> None:
    play = Play()
    token = path_of(streaming.url(play.job(forever))).rpartition("/")[2]
    line = await connect(streaming.base)
    answer = await line.ask(path.format(token=token), *WEBSOCKET, key())
    assert answer.status == 404
    assert play.begun == 0


async def test_an_old_url_is_not_found() -> None:
    async with server(url_lifetime=0.05) as streaming:
        url = streaming.url(Play().job(forever))
        await asyncio.sleep(0.1)
        answer = await (await connect(streaming.base)).ask(path_of(url), *WEBSOCKET, key())
        assert answer.status == 404


@pytest.mark.parametrize("transport", ["spdy", "websocket"])
@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_command_ends_with_its_client(streaming: Server, transport: str, how: str) -> None:
    play = Play()
    url = streaming.url(play.job(forever))
    if transport == "spdy":
        client = await spdy(streaming.base, url)
        await client.open_all("error", "stdin", "stdout", "stderr")
        line = client.line
    else:
        line = (await websocket(streaming.base, url)).line
    await play.until(lambda: play.begun == 1)
    getattr(line, how)()
    await play.until(lambda: play.cancelled == 1)


async def test_a_client_may_say_goodbye(streaming: Server) -> None:
    play = Play()
    client = await spdy(streaming.base, streaming.url(play.job(forever)))
    await client.open_all("error", "stdin", "stdout", "stderr")
    await play.until(lambda: play.begun == 1)
    await client.send(GoAway(0))
    await play.until(lambda: play.cancelled == 1)
    over_websocket = await websocket(streaming.base, streaming.url(play.job(forever)))
    await play.until(lambda: play.begun == 2)
    await over_websocket.event(CloseConnection(1000))
    await play.until(lambda: play.cancelled == 2)


async def test_a_client_may_leave_with_unread_input(streaming: Server) -> None:
    """More than the inbox takes is under way, so the server reads nothing when the client goes."""
    play = Play()
    client = await spdy(streaming.base, streaming.url(play.job(forever)))
    await client.open_all("error", "stdin", "stdout", "stderr")
    for _ in range((LIMIT_BYTES + 3 * READ_BYTES) // 50_000):
        await client.write("stdin", b"x" * 50_000)
    client.line.abort()
    await play.until(lambda: play.cancelled == 1)


async def test_a_slow_reader_holds_up_its_command_and_no_other(streaming: Server) -> None:
    written = 0

    async def pour(command: Command) -> ExitStatus:
        nonlocal written
        while True:
            await command.stdout(b"x" * 65_536)
            written += 65_536

    slow = await spdy(streaming.base, streaming.url(Play().job(pour)))
    await slow.open_all("error", "stdin", "stdout", "stderr")
    before = -1
    async with asyncio.timeout(60):
        while not written or before != written:  # until the kernel's buffers and ours are full
            before = written
            await asyncio.sleep(0.2)
    assert written < 32 << 20
    other = await websocket(streaming.base, streaming.url(Play().job(echo)))
    await other.send(b"\0hello")
    await other.send(b"\xff\0")
    await other.until(lambda: other.closed)
    assert other.channel(1) == b"hello"
    slow.line.abort()


async def test_a_client_without_streams_times_out() -> None:
    async with server(stream_timeout=2.0) as streaming:
        play = Play()
        client = await spdy(streaming.base, streaming.url(play.job(echo)))
        await client.open_all("error", "stdout")
        await client.finished("error")
        assert "did not open its streams" in json.loads(client.text("error"))["message"]
        assert play.begun == 0


async def test_unrequested_streams_are_refused(streaming: Server) -> None:
    client = await spdy(streaming.base, streaming.url(Play().job(echo)))
    await client.open_all("error", "stdin")
    wrong = [await client.open(streamtype=kind) for kind in ("stdin", "resize", "data", "")]
    assert [client.refused[number] for number in wrong] == [ResetStatus.REFUSED_STREAM] * 4
    await client.open_all("stdout", "stderr")
    await client.write("stdin", b"x", fin=True)
    await client.finished("error")
    assert client.text("stdout") == b"x"


async def test_a_thousand_streams_are_not_kept(streaming: Server) -> None:
    client = await spdy(streaming.base, streaming.url(Play().job(echo)))
    for number in range(1, 2001, 2):
        await client.send(SynStream(number, {"streamtype": ("other",)}))
    await client.until(lambda: len(client.refused) == 1000)


async def test_decreasing_stream_ids_end_the_connection(streaming: Server) -> None:
    client = await spdy(streaming.base, streaming.url(Play().job(echo)))
    await client.send(SynStream(5, {"streamtype": ("error",)}), SynStream(3, {"streamtype": ("stdin",)}))
    with pytest.raises((EOFError, ConnectionError)):
        await client.until(lambda: False)


async def test_data_for_no_stream_is_reset(streaming: Server) -> None:
    client = await spdy(streaming.base, streaming.url(Play().job(echo)))
    await client.send(Data(9, b"x"))
    await client.until(lambda: client.refused.get(9) == ResetStatus.INVALID_STREAM)


async def test_data_after_the_end_of_a_stream_is_dropped() -> None:
    """The stream existed: no reset tells the client otherwise. A stream that never existed gets a reset."""
    encoder = SpdyEncoder()
    frames: list[Frame] = [
        SynStream(1, {"a": ("b",)}, fin=True),
        Data(1, b"late"),
        SynStream(3, {"a": ("b",)}),
        Data(3, b"in time", fin=True),
        Data(3, b"late"),
        Data(1, b"late"),
        Data(5, b"of none"),
    ]
    opened: list[SpdyStream] = []

    def accept(stream: SpdyStream) -> bool:
        opened.append(stream)
        return True

    wire = Script(b"".join(encoder.encode(frame) for frame in frames))
    await SpdySession(wire, accept).run()
    answered = list(SpdyDecoder().feed(wire.sent))
    assert answered == [SynReply(1), SynReply(3), Reset(5, ResetStatus.INVALID_STREAM)]
    assert [await opened[0].read(), await opened[1].read(), await opened[1].read()] == [b"", b"in time", b""]


async def test_pings_are_answered(streaming: Server) -> None:
    client = await spdy(streaming.base, streaming.url(Play().job(forever)))
    await client.send(SpdyPing(2), SpdyPing(7))
    await client.until(lambda: client.others)
    assert client.others == [SpdyPing(7)], "even ones would be answers to ours"
    over_websocket = await websocket(streaming.base, streaming.url(Play().job(forever)))
    await over_websocket.event(Ping(b"there?"))
    await over_websocket.step()


async def test_a_client_with_reset_outputs_gets_the_exit_code(streaming: Server) -> None:
    client = await spdy(streaming.base, streaming.url(Play().job(echo)))
    await client.open_all("error", "stdin", "stdout", "stderr")
    await client.send(Reset(client.streams["stdout"], 5))
    await client.write("stdin", b"hello", fin=True)
    await client.finished("error")
    assert client.text("stdout") == b""
    assert json.loads(client.text("error"))["reason"] == "NonZeroExitCode"


@pytest.mark.parametrize(
    "message", [b"\xff", b"\xff\0\0", b"\xff" + b"x" * 300_000], ids=["no channel", "two", "long"]
)
async def test_an_end_of_no_channel(streaming: Server, message: bytes) -> None:
    play = Play()
    client = await websocket(streaming.base, streaming.url(play.job(forever)))
    await play.until(lambda: play.begun == 1)
    await client.send(message)
    await play.until(lambda: play.cancelled == 1)


async def test_unread_channels_do_not_delay_the_command(streaming: Server) -> None:
    client = await websocket(streaming.base, streaming.url(Play().job(echo)))
    for channel in (1, 2, 3, 4, 9, 254):
        await client.send(bytes((channel,)) + b"ignored")
    await client.send(b"")
    await client.send(b"\xff\x09")
    await client.send(b"\0x")
    await client.send(b"\xff\0")
    await client.until(lambda: client.closed)
    assert client.channel(1) == b"x"


async def test_invalid_base64_cancels_the_command(streaming: Server) -> None:
    play = Play()
    client = await websocket(streaming.base, streaming.url(play.job(forever)), "base64.channel.k8s.io")
    await play.until(lambda: play.begun == 1)
    await client.event(TextMessage("0not base64!"))
    await play.until(lambda: play.cancelled == 1)


async def test_an_idle_stream_is_ended() -> None:
    async with server(idle_timeout=2.0) as streaming:
        play = Play()
        client = await websocket(streaming.base, streaming.url(play.job(forever)))
        for _ in range(12):
            await asyncio.sleep(0.2)
            await client.event(Ping())
        assert play.cancelled == 0, "it was not idle"
        await play.until(lambda: play.cancelled == 1)


async def test_too_many_streams_are_refused() -> None:
    async with server(connections=2) as streaming:
        play = Play()
        clients = [await websocket(streaming.base, streaming.url(play.job(forever, pod=pod))) for pod in "ab"]
        await play.until(lambda: play.begun == 2)
        url = streaming.url(play.job(forever))
        answer = await (await connect(streaming.base)).ask(path_of(url), *WEBSOCKET, key())
        assert answer.status == 503
        clients[0].line.abort()
        await play.until(lambda: play.cancelled == 1)
        async with asyncio.timeout(60):  # the refusal has not used the URL
            while play.begun < 3:
                with contextlib.suppress(AssertionError):
                    await websocket(streaming.base, url)
        await play.until(lambda: play.begun == 3)


async def test_half_open_connections_do_not_keep_others_out() -> None:
    async with server(handshake_timeout=600.0) as streaming:
        idle = [await connect(streaming.base) for _ in range(MOST_PENDING)]
        for line in idle[:20]:
            await line.send(b"GET /exec/")
        client = await websocket(streaming.base, streaming.url(Play().job(echo)))
        await client.send(b"\0x")
        await client.send(b"\xff\0")
        await client.until(lambda: client.closed)
        assert client.channel(1) == b"x"
        async with asyncio.timeout(60):
            assert await idle[0].reader.read() == b"", "the oldest had to go"
        for line in idle:
            line.close()


async def test_a_slow_handshake_times_out() -> None:
    async with server(handshake_timeout=0.2) as streaming:
        line = await connect(streaming.base)
        await line.send(b"GET /exec/x HTTP/1.1\r\n")
        async with asyncio.timeout(60):
            assert await line.reader.read() == b""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"\x80\x03\0\x01\0\0\0\0\r\n\r\n", 400),
        (b"GET /exec/x\r\n\r\n", 400),
        (b"GET /exec/x HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n", 431),
        (b"GET /exec/x HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20_000, 431),
        (b"POST /exec/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"POST /exec/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
    ],
    ids=["spdy at once", "http 0.9", "no host", "long line", "many headers", "body", "two lengths"],
)
async def test_malformed_requests_are_refused(streaming: Server, head: bytes, status: int) -> None:
    line = await connect(streaming.base)
    line.writer.write(head)
    async with asyncio.timeout(60):
        answer = await line.reader.read()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:100]


async def test_a_stop_ends_every_stream() -> None:
    play = Play()
    async with server() as streaming:
        client = await websocket(streaming.base, streaming.url(play.job(forever)))
        await play.until(lambda: play.begun == 1)
    assert play.cancelled == 1
    with pytest.raises((EOFError, ConnectionError)):
        await client.until(lambda: False)


async def test_no_listener_is_left_behind() -> None:
    async with server() as streaming:
        base = streaming.base
    with pytest.raises(ConnectionRefusedError):
        await connect(base)


async def test_a_taken_address_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Broken, match=f"listen on {address}: Address already in use"):
            async with server(address=address):
                pass


async def test_output_is_not_lost_when_input_is_under_way(streaming: Server) -> None:
    """The server closes while the client still sends: earlier output must arrive."""

    async def hasty(command: Command) -> ExitStatus:
        await command.stdout(b"done" * 50_000)
        return ExitStatus()

    client = await spdy(streaming.base, streaming.url(Play().job(hasty)))
    await client.open_all("error", "stdin", "stdout", "stderr")
    for _ in range(20):
        await client.write("stdin", b"x" * 60_000)
    await client.finished("error")
    assert client.text("stdout") == b"done" * 50_000
    assert json.loads(client.text("error")) == SUCCESS


class Script:
    """A wire that plays a client's bytes."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self.sent = b""
        self.quota = BufferQuota()

    async def receive(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    async def send(self, data: bytes) -> None:
        self.sent += data

    async def hung_up(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Do nothing."""


async def test_a_session_ends_its_streams_input_with_the_client() -> None:
    encoder = SpdyEncoder()
    opened = []

    def accept(stream: object) -> bool:
        opened.append(stream)
        return True

    wire = Script(encoder.encode(SynStream(1, {"a": ("b",)})) + encoder.encode(Data(1, b"hello")))
    await SpdySession(wire, accept).run()
    (stream,) = opened
    assert [await stream.read(), await stream.read()] == [b"hello", b""]  # type: ignore[attr-defined]


class HungUp(Script):
    """A wire whose client has already hung up."""

    async def hung_up(self) -> None:
        """Return at once."""


async def test_malformed_bytes_a_hang_up_and_a_late_write_raise_client_gone() -> None:
    opened: list[SpdyStream] = []

    def accept(stream: SpdyStream) -> bool:
        opened.append(stream)
        return True

    with pytest.raises(ClientGone, match="not SPDY"):
        await SpdySession(Script(b"\xff" * 16), accept).run()
    encoder = SpdyEncoder()
    full = encoder.encode(SynStream(1, {"a": ("b",)})) + encoder.encode(Data(1, b"x" * LIMIT_BYTES))
    wire = HungUp(full, encoder.encode(Data(1, b"unread")))
    async with asyncio.timeout(60):
        with pytest.raises(ClientGone, match="hung up"):
            await SpdySession(wire, accept).run()
    assert len(wire._pieces) == 1
    (stream,) = opened
    await stream.finish()
    sent = wire.sent
    with pytest.raises(ClientGone, match="stream 1 is closed"):
        await stream.write(b"late")
    assert wire.sent == sent


def test_the_kernel_reports_a_clients_reset() -> None:
    """``hung_up`` relies on the fact: EPOLLRDHUP arrives before unread data is read."""
    import select

    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    client.sendall(b"unread")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    with select.epoll() as poll:
        poll.register(accepted.fileno(), select.EPOLLRDHUP)
        assert poll.poll(0) == []
        client.close()
        assert poll.poll(60)
    accepted.close()
    listener.close()
