"""Port-forwards over SPDY, with connections that the test answers; and TLS."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest

from cri.config import TlsConfig
from cri.streaming.spdy.frames import Data, Reset, ResetStatus
from cri.streaming.transport.session import MOST_STREAMS
from daemonkit.convert import WrongKey
from tests.support.cri.stream_client import WEBSOCKET, Spdy, Ws, connect, key, path_of, spdy
from tests.support.cri.stream_jobs import Echo, Play, echo, forwarding, streaming_server

PROTOCOL = "portforward.k8s.io"


async def pair(client: Spdy, number: int, port: int = 80) -> tuple[int, int]:
    """The error stream and the data stream of a connection."""
    head = {"port": str(port), "requestid": str(number)}
    error = await client.open(streamtype="error", **head)
    return error, await client.open(streamtype="data", **head)


async def test_many_connections_at_once() -> None:
    async with streaming_server() as streaming:
        echoes = Echo()
        client = await spdy(streaming.base, streaming.url(forwarding(echoes)), PROTOCOL)
        pairs = [await pair(client, number) for number in range(100)]
        await echoes.until(lambda: echoes.open == 100)
        for number, (_, data) in enumerate(pairs):
            await client.send(Data(data, f"hello {number}".encode(), fin=True))
        await client.until(lambda: client.ended >= {stream for both in pairs for stream in both})
        for number, (error, data) in enumerate(pairs):
            assert client.output[data] == f"HELLO {number}".encode()
            assert client.output[error] == b""
        assert echoes.open == 0
        for number in range(100, 700):  # in all more than may be open at once
            error, data = await pair(client, number)
            await client.send(Data(error, b"", fin=True), Data(data, b"", fin=True))
            await client.until(lambda both={error, data}: client.ended >= both)
        assert echoes.made == 700 > MOST_STREAMS


async def test_a_refusing_port_is_an_error_of_its_stream() -> None:
    async with streaming_server() as streaming:
        client = await spdy(streaming.base, streaming.url(forwarding(echoes := Echo(refuses={81}))), PROTOCOL)
        good, bad = await pair(client, 1, 80), await pair(client, 2, 81)
        await client.until(lambda: client.ended >= set(bad))
        assert b"error forwarding port 81: dial port 81: connection refused" in client.output[bad[0]]
        await client.send(Data(good[1], b"still there", fin=True))
        await client.until(lambda: client.ended >= set(good))
        assert client.output[good[1]] == b"STILL THERE"
        assert echoes.made == 1


async def test_a_reset_closes_a_single_connection() -> None:
    async with streaming_server() as streaming:
        echoes = Echo()
        client = await spdy(streaming.base, streaming.url(forwarding(echoes)), PROTOCOL)
        one, two = await pair(client, 1), await pair(client, 2)
        await echoes.until(lambda: echoes.open == 2)
        await client.send(Reset(one[1], ResetStatus.CANCEL))
        await echoes.until(lambda: echoes.open == 1)
        await client.send(Data(two[1], b"on", fin=True))
        await client.until(lambda: two[1] in client.ended)
        assert client.output[two[1]] == b"ON"


async def test_connections_end_with_their_client() -> None:
    async with streaming_server() as streaming:
        echoes = Echo()
        client = await spdy(streaming.base, streaming.url(forwarding(echoes)), PROTOCOL)
        for number in range(10):
            await pair(client, number)
        await echoes.until(lambda: echoes.open == 10)
        client.line.abort()
        await echoes.until(lambda: echoes.open == 0)


async def test_clients_without_request_ids_are_served() -> None:
    async with streaming_server() as streaming:
        client = await spdy(streaming.base, streaming.url(forwarding(Echo())), "")
        error = await client.open(streamtype="error", port="80")
        data = await client.open(streamtype="data", port="80")
        await client.send(Data(data, b"old", fin=True))
        await client.until(lambda: client.ended >= {error, data})
        assert client.output[data] == b"OLD"


@pytest.mark.parametrize(
    "headers",
    [
        {"streamtype": "data"},
        {"streamtype": "data", "port": "0"},
        {"streamtype": "data", "port": "65536"},
        {"streamtype": "data", "port": "-1"},
        {"streamtype": "data", "port": "²"},
        {"streamtype": "data", "port": "1" * 3000},
        {"streamtype": "stdin", "port": "80"},
        {"port": "80"},
    ],
    ids=["no port", "0", "65536", "negative", "other digits", "long", "stdin", "no type"],
)
async def test_invalid_streams_are_refused(headers: dict[str, str]) -> None:
    async with streaming_server() as streaming:
        echoes = Echo()
        client = await spdy(streaming.base, streaming.url(forwarding(echoes)), PROTOCOL)
        number = await client.open(**headers)
        assert client.refused[number] == ResetStatus.REFUSED_STREAM
        assert echoes.made == 0


async def test_mismatched_halves_are_refused() -> None:
    async with streaming_server() as streaming:
        client = await spdy(streaming.base, streaming.url(forwarding(Echo())), PROTOCOL)
        await client.open(streamtype="error", port="80", requestid="1")
        for headers in ({"streamtype": "error", "port": "80"}, {"streamtype": "data", "port": "81"}):
            number = await client.open(requestid="1", **headers)
            assert client.refused[number] == ResetStatus.REFUSED_STREAM


async def test_half_a_connection_is_given_up() -> None:
    async with streaming_server(stream_timeout=0.2) as streaming:
        client = await spdy(streaming.base, streaming.url(forwarding(Echo())), PROTOCOL)
        number = await client.open(streamtype="error", port="80", requestid="1")
        await client.until(lambda: number in client.refused)


async def test_too_many_streams_of_a_client_are_refused() -> None:
    async with streaming_server() as streaming:
        client = await spdy(streaming.base, streaming.url(forwarding(Echo())), PROTOCOL)
        for number in range(MOST_STREAMS):
            await client.open(streamtype="error", port="80", requestid=str(number))
        assert not client.refused
        last = await client.open(streamtype="error", port="80", requestid="last")
        assert client.refused[last] == ResetStatus.REFUSED_STREAM


def certificate(folder: Path, name: str, issuer: str = "") -> None:
    """A key and a certificate for 127.0.0.1 with this name; an authority's, unless ``issuer`` signs it."""
    key_file, pem = folder / f"{name}.key", folder / f"{name}.crt"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-keyout", str(key_file), "-out", str(pem), "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    if issuer:
        command += ["-CA", str(folder / f"{issuer}.crt"), "-CAkey", str(folder / f"{issuer}.key")]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    for name, issuer in (
        ("ca", ""),
        ("server", "ca"),
        ("client", "ca"),
        ("other-ca", ""),
        ("other", "other-ca"),
    ):
        certificate(folder, name, issuer)
    return folder


def client_context(pki: Path, name: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    if name:
        context.load_cert_chain(pki / f"{name}.crt", pki / f"{name}.key")
    return context


def tls(pki: Path) -> TlsConfig:
    return TlsConfig(pki / "server.crt", pki / "server.key", pki / "ca.crt")


async def test_a_client_with_a_certificate_is_served(pki: Path) -> None:
    async with streaming_server(tls=tls(pki)) as streaming:
        url = streaming.url(Play().job(echo))
        assert url.startswith("https://127.0.0.1:")
        line = await connect(streaming.base, client_context(pki, "client"))
        answer = await line.ask(
            path_of(url), *WEBSOCKET, key(), ("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
        )
        assert answer.status == 101
        client = Ws(line)
        content = bytes(range(256)) * 2000
        for at in range(0, len(content), 50_000):
            await client.send(b"\0" + content[at : at + 50_000])
        await client.send(b"\xff\0")
        await client.until(lambda: client.closed)
        assert client.channel(1) == content


@pytest.mark.parametrize("name", ["", "other"])
async def test_a_client_without_the_right_certificate_is_refused(pki: Path, name: str) -> None:
    async with streaming_server(tls=tls(pki)) as streaming:
        play = Play()
        url = streaming.url(play.job(echo))
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            line = await connect(streaming.base, client_context(pki, name))
            await line.ask(path_of(url), *WEBSOCKET, key())
        assert play.begun == 0


async def test_no_plain_http_where_there_is_tls(pki: Path) -> None:
    async with streaming_server(tls=tls(pki)) as streaming:
        line = await connect(streaming.base)
        await line.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not (await line.reader.read()).startswith(b"HTTP/1.1 1")


async def test_missing_tls_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(WrongKey, match="'streaming.tls.certificate'.*No such file"):
        async with streaming_server(tls=TlsConfig(tmp_path / "a", tmp_path / "b")):
            pass
