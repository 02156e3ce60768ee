"""The parts of streaming without a connection: tokens, negotiation, exit statuses, quotas, settings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri.config import StreamingConfig, TlsConfig
from cri.streaming.http.handshake import Bad, Request
from cri.streaming.http.negotiate import negotiate
from cri.streaming.http.tokens import TOKEN_CHARACTERS, Tokens
from cri.streaming.process.command import SPDY_PROTOCOLS
from cri.streaming.process.copy import Size, Sizes, copy_streams
from cri.streaming.process.exit_status import ExitStatus
from cri.streaming.transport.channels import PROTOCOLS
from cri.streaming.transport.inbox import TAKE_BYTES, Inbox, InOrder
from cri.streaming.transport.quota import BufferQuota
from cri.streaming.transport.wire import ClientGone, SocketWire
from xenpod_proto.protect.v1 import protect_pb2 as pb


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_good_once() -> None:
    tokens = Tokens[str](60, Clock())
    token = tokens.issue("job")
    assert len(token) == TOKEN_CHARACTERS
    assert (tokens.redeem(token), tokens.redeem(token)) == ("job", None)
    assert len(tokens) == 0


def test_a_token_is_good_for_a_while() -> None:
    clock = Clock()
    tokens = Tokens[str](60, clock)
    early, late = tokens.issue("early"), ""
    clock.now = 30
    late = tokens.issue("late")
    clock.now = 60
    assert (tokens.redeem(early), tokens.redeem(late)) == (None, "late")


def test_end_of_a_token_is_told_once() -> None:
    clock, ended = Clock(), []
    tokens = Tokens[str](60, clock)
    used, late = (tokens.issue(name, lambda name=name: ended.append(name)) for name in ("used", "late"))  # type: ignore[misc]
    assert tokens.find(used) == "used"
    assert ended == []
    tokens.redeem(used)
    clock.now = 60
    assert tokens.redeem(late) is None
    assert ended == ["used", "late"]


def test_a_wrong_secret_does_not_use_the_token_up() -> None:
    tokens = Tokens[str](60, Clock())
    token = tokens.issue("job")
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    for guess in (changed, token[:-1], token + "A", "", "é" * TOKEN_CHARACTERS):
        assert tokens.redeem(guess) is None
    assert tokens.redeem(token) == "job"


def test_tokens_are_all_different() -> None:
    tokens = Tokens[int](60, Clock())
    assert len({tokens.issue(n) for n in range(1000)}) == 1000


def request(*headers: tuple[str, str], method: str = "GET") -> Request:
    return Request(method, "/exec/x", headers)


SPDY = (("connection", "Upgrade"), ("upgrade", "SPDY/3.1"))
WEBSOCKET = (
    ("connection", "keep-alive, Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
)


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (["v5.channel.k8s.io", "v4.channel.k8s.io"], "v5.channel.k8s.io"),
        (["v9.channel.k8s.io", "v3.channel.k8s.io"], "v3.channel.k8s.io"),
        (["v2.channel.k8s.io, channel.k8s.io"], "v2.channel.k8s.io"),
        ([], ""),
    ],
)
def test_spdy_is_negotiated_in_the_clients_order(asked: list[str], chosen: str) -> None:
    headers = [*SPDY, *(("x-stream-protocol-version", name) for name in asked)]
    found = negotiate(request(*headers, method="POST"), SPDY_PROTOCOLS, PROTOCOLS)
    assert not found.websocket
    assert found.protocol == SPDY_PROTOCOLS[chosen]
    assert dict(found.headers).get("X-Stream-Protocol-Version", "") == chosen


@pytest.mark.parametrize("name", [*PROTOCOLS])
def test_websocket_is_negotiated(name: str) -> None:
    headers = [*WEBSOCKET, *([("sec-websocket-protocol", f"other, {name}")] if name else [])]
    found = negotiate(request(*headers), SPDY_PROTOCOLS, PROTOCOLS)
    assert found.websocket
    assert found.protocol == PROTOCOLS[name]
    answer = dict(found.headers)
    assert answer["Sec-WebSocket-Accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "RFC 6455, section 1.3"
    assert answer.get("Sec-WebSocket-Protocol", "") == name


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request(), 400),
        (request(*SPDY, method="DELETE"), 405),
        (request(*WEBSOCKET, method="POST"), 405),
        (request(*SPDY, ("x-stream-protocol-version", "v9.channel.k8s.io")), 403),
        (request(*WEBSOCKET, ("sec-websocket-protocol", "v9.channel.k8s.io")), 403),
        (request(*WEBSOCKET[:2], ("sec-websocket-version", "8"), WEBSOCKET[3]), 426),
        (request(*WEBSOCKET[:3]), 400),
        (request(*WEBSOCKET[:3], ("sec-websocket-key", "c2hvcnQ=")), 400),
        (request(*WEBSOCKET[:3], ("sec-websocket-key", "not base64!")), 400),
        (request(("connection", "close"), ("upgrade", "SPDY/3.1")), 400),
    ],
)
def test_failed_negotiation_has_its_http_status(asked: Request, status: int) -> None:
    with pytest.raises(Bad) as refused:
        negotiate(asked, SPDY_PROTOCOLS, PROTOCOLS)
    assert refused.value.status == status


def test_exit_statuses_as_kubernetes_reads_them() -> None:
    assert json.loads(ExitStatus().to_json()) == {"metadata": {}, "status": "Success"}
    failed = json.loads(ExitStatus(code=7).to_json())
    assert (failed["status"], failed["reason"]) == ("Failure", "NonZeroExitCode")
    assert failed["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]
    broken = json.loads(ExitStatus(failure="no such file").to_json())
    assert (broken["status"], broken["reason"], broken["code"]) == ("Failure", "InternalError", 500)
    assert "no such file" in broken["message"]
    assert ExitStatus().to_text() == b""
    assert ExitStatus(code=7).to_text() == b"command terminated with non-zero exit code: 7"


def read_sizes(*pieces: bytes) -> list[Size]:
    sizes = Sizes()
    return [size for piece in pieces for size in sizes.parse(piece)]


@given(
    st.lists(st.tuples(st.integers(1, 65535), st.integers(1, 65535)), max_size=5),
    st.integers(1, 20),
    st.sampled_from(["", "\n", " \r\n"]),
)
def test_sizes_however_they_are_cut(asked: list[tuple[int, int]], step: int, between: str) -> None:
    text = "".join(f'{{"Width":{w},"Height":{h}}}{between}' for w, h in asked).encode()
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    assert read_sizes(*pieces) == [Size(h, w) for w, h in asked]


def test_a_size_of_nothing_is_passed_over() -> None:
    assert read_sizes(b'{"Width":0,"Height":0}{"Width":80,"Height":24}') == [Size(24, 80)]


@pytest.mark.parametrize(
    "piece",
    [
        b"[]", b"null", b"{}", b'{"Width":-1,"Height":2}', b'{"Width":1e9,"Height":2}',
        b'{"Width":65536,"Height":2}', b'{"Width":true,"Height":2}', b"x" * 5000, b'{"' * 4000,
        b"[" * 200_000,
    ],
)  # fmt: skip
def test_malformed_sizes_are_an_error(piece: bytes) -> None:
    with pytest.raises(ClientGone):
        read_sizes(piece)


async def test_an_inbox_counts_waiting_bytes() -> None:
    quota = BufferQuota(limit=1000)
    inbox = Inbox(quota)
    inbox.put(b"x" * 500)
    assert quota.space.is_set()
    inbox.put(b"y" * 500)
    assert not quota.space.is_set()
    assert await inbox.read() == b"x" * 500 + b"y" * 500
    assert quota.used == 0
    assert quota.space.is_set()


async def test_empty_pieces_cost_nothing_and_tiny_ones_something() -> None:
    quota = BufferQuota(limit=1000)
    inbox, other = Inbox(quota), Inbox(quota)
    for _ in range(100_000):
        inbox.put(b"")
    assert quota.used == 0
    for _ in range(10):
        inbox.put(b"z")
        other.put(b"z")
    assert not quota.space.is_set()


async def test_successive_tiny_pieces_are_joined() -> None:
    quota = BufferQuota()
    inbox = Inbox(quota)
    for _ in range(10_000):
        inbox.put(b"z")
    assert quota.used < 11_000
    assert await inbox.read() == b"z" * 10_000
    assert quota.used == 0


async def test_an_inbox_gives_bounded_pieces() -> None:
    inbox = Inbox(BufferQuota())
    for _ in range(3):
        inbox.put(b"x" * (TAKE_BYTES // 2))
    inbox.end()
    assert [len(await inbox.read()) for _ in range(3)] == [TAKE_BYTES, TAKE_BYTES // 2, 0]


async def test_an_unwanted_inbox_keeps_nothing() -> None:
    quota = BufferQuota(limit=10)
    inbox = Inbox(quota)
    inbox.put(b"x" * 100)
    inbox.discard()
    inbox.put(b"y" * 100)
    assert quota.used == 0
    assert quota.space.is_set()
    assert await inbox.read() == b""


async def test_inboxes_are_read_in_the_order_of_arrival() -> None:
    """Pieces of an inbox are not joined across pieces of another inbox; ends are told last."""
    quota = BufferQuota()
    one, two = Inbox(quota), Inbox(quota)
    for inbox, data in ((one, b"1"), (one, b"2"), (two, b"a"), (two, b"b"), (one, b"3")):
        inbox.put(data)
    one.end()
    both = InOrder({"one": one, "two": two})
    read = [await both.read() for _ in range(4)]
    assert read == [("one", b"12"), ("two", b"ab"), ("one", b"3"), ("one", b"")]
    assert quota.used == 0
    late = asyncio.ensure_future(both.read())
    await asyncio.sleep(0)
    two.put(b"c")
    assert await late == ("two", b"c")
    two.discard()
    assert [await both.read(), await both.read()] == [("two", b""), None]


TLS = TlsConfig(Path("/c"), Path("/k"), Path("/ca"))


@pytest.mark.parametrize(
    ("address", "tls", "message"),
    [
        ("10.0.0.1:4000", TlsConfig(), "not a loopback"),
        ("10.0.0.1:4000", TlsConfig(Path("/c"), Path("/k")), "client_ca"),
        ("[2001:db8::1]:4000", TlsConfig(), "not a loopback"),
        ("0.0.0.0:4000", TLS, "one of this host"),
        ("localhost:4000", TlsConfig(), "<IP address>:<port>"),
        ("127.0.0.1", TlsConfig(), "<IP address>:<port>"),
        ("127.0.0.1:99999", TlsConfig(), "no port from 0 to 65535"),
    ],
)
def test_invalid_addresses_are_refused(address: str, tls: TlsConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamingConfig(address=address, tls=tls)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.0.0.9:4000", "[::1]:0"])
def test_loopback_needs_no_tls(address: str) -> None:
    assert not StreamingConfig(address=address).tls.on


def test_an_address_beyond_loopback_is_accepted_with_tls_and_a_client_ca() -> None:
    assert StreamingConfig(address="10.0.0.1:4000", tls=TLS).tls.on


@pytest.mark.parametrize(
    "files", [{"certificate": Path("/c")}, {"key": Path("/k")}, {"client_ca": Path("/a")}]
)
def test_tls_files_belong_together(files: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"together|of no use"):
        TlsConfig(**files)


class _Endless:
    """A silent process without an end; and a client's terminal and input."""

    def __init__(self) -> None:
        quota = BufferQuota()
        self.stdin = Inbox(quota)
        self.resizes = Inbox(quota)

    async def outputs(self) -> AsyncIterator[object]:
        await asyncio.Event().wait()
        yield None


async def test_a_client_with_bad_terminal_sizes_is_gone() -> None:
    """A single fault, not a group: the server of the client handles a single fault."""
    both: Any = _Endless()
    both.resizes.put(b"[]")
    async with asyncio.timeout(60):
        with pytest.raises(ClientGone, match="no object"):
            await copy_streams(both, both, stdin=True, tty=True)


class _Recorded(_Endless):
    """A command that also records the process's input, until the input ends."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[object] = []
        self.ended = asyncio.Event()

    async def outputs(self) -> AsyncIterator[pb.ExecOutput]:
        await self.ended.wait()
        yield pb.ExecOutput(exit=pb.ProcessExit(exit_code=4))

    async def resize(self, rows: int, columns: int) -> None:
        await asyncio.sleep(0)
        self.got.append((rows, columns))

    async def input(self, data: bytes) -> None:
        self.got.append(data)

    async def stdin_eof(self) -> None:
        self.ended.set()


async def test_a_process_gets_sizes_and_input_in_the_order_of_arrival() -> None:
    """Also sizes and input from before the first reader, and a size in two parts."""
    command: Any = _Recorded()
    command.resizes.put(b'{"Width":80,"Height":24}{"Width":100,')
    command.stdin.put(b"a")
    command.resizes.put(b'"Height":30}')
    command.stdin.put(b"b")
    command.stdin.end()
    process: Any = SimpleNamespace(
        stdin=command.input, stdin_eof=command.stdin_eof, resize=command.resize, outputs=command.outputs
    )
    async with asyncio.timeout(60):
        assert await copy_streams(process, command, stdin=True, tty=True) == 4
    assert command.got == [(24, 80), b"a", (30, 100), b"b"]


class _Broken:
    """A socket's reader and writer after the connection was reset."""

    def __init__(self) -> None:
        self.transport = self
        self.closing = False

    def set_write_buffer_limits(self, high: int) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        assert not self.closing

    async def read(self, size: int) -> bytes:
        raise ConnectionResetError("reset by peer")

    async def drain(self) -> None:
        raise ConnectionResetError("reset by peer")


async def test_a_lost_connection_is_a_client_gone() -> None:
    broken: Any = _Broken()
    wire = SocketWire(broken, broken)
    wire.unread(b"early")
    assert await wire.receive() == b"early"
    with pytest.raises(ClientGone, match="reset by peer"):
        await wire.receive()
    with pytest.raises(ClientGone, match="reset by peer"):
        await wire.send(b"x")
    broken.closing = True
    with pytest.raises(ClientGone, match="closed"):
        await wire.send(b"x")
