"""Clients whose command is cut off with the server: no client may take the end for success."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from cri.streaming.server import Server
from cri.streaming.spdy.frames import GoAway
from tests.support.cri.stream_client import Spdy, connect, spdy, websocket
from tests.support.cri.stream_jobs import Echo, Play, forever, forwarding, streaming_server

GOODBYE = 60.0


async def begun(streaming: Server, protocol: str) -> Spdy:
    """A client of a running command."""
    play = Play()
    client = await spdy(streaming.base, streaming.url(play.job(forever)), protocol)
    await client.open_all("error", "stdin", "stdout", "stderr")
    await play.until(lambda: play.begun == 1)
    return client


def stopped(said: bytes) -> None:
    """Check that the text is a v1.Status of a failure with its reason."""
    status = json.loads(said)
    assert (status["status"], status["reason"]) == ("Failure", "InternalError")
    assert "is stopping" in status["message"]


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
async def test_a_stop_is_told_over_spdy(protocol: str) -> None:
    async with streaming_server(GOODBYE) as streaming:
        client = await begun(streaming, protocol)
        closing = asyncio.ensure_future(streaming.close(GOODBYE))
        await client.finished("error", "stdout", "stderr")
        stopped(client.text("error"))
        await client.until(lambda: GoAway(7) in client.others)
        client.line.close()
        await closing


@pytest.mark.parametrize("protocol", ["", "channel.k8s.io", "v3.channel.k8s.io"])
async def test_a_stop_is_told_to_older_clients_as_text(protocol: str) -> None:
    async with streaming_server(GOODBYE) as streaming:
        client = await begun(streaming, protocol)
        closing = asyncio.ensure_future(streaming.close(GOODBYE))
        await client.finished("error")
        assert client.text("error") == b"the container runtime is stopping"
        client.line.close()
        await closing


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.base64.channel.k8s.io"])
async def test_a_stop_is_told_over_websocket(protocol: str) -> None:
    async with streaming_server(GOODBYE) as streaming:
        play = Play()
        client = await websocket(streaming.base, streaming.url(play.job(forever)), protocol)
        await play.until(lambda: play.begun == 1)
        closing = asyncio.ensure_future(streaming.close(GOODBYE))
        await client.until(lambda: client.closed)
        last = client.messages[-1]
        stopped(base64.b64decode(last[1:]) if isinstance(last, str) else last[1:])
        assert last[:1] in ("3", b"\3")
        client.line.close()
        await closing
        assert (play.cancelled, play.ended) == (1, 0)


async def test_a_stop_is_told_before_all_streams_are_open() -> None:
    async with streaming_server(GOODBYE) as streaming:
        client = await spdy(streaming.base, streaming.url(Play().job(forever)))
        await client.open_all("error", "stdin")
        closing = asyncio.ensure_future(streaming.close(GOODBYE))
        await client.finished("error")
        stopped(client.text("error"))
        client.line.close()
        await closing


async def test_the_death_of_the_server_is_no_success() -> None:
    """Clients of v4 and v5 parse the error stream unless it is empty: the stream is never empty."""
    async with streaming_server() as streaming:
        clients = [await begun(streaming, f"v{version}.channel.k8s.io") for version in (4, 5)]
        await asyncio.gather(*(client.until(lambda c=client: c.text("error")) for client in clients))
        await streaming.close(0)
        for client in clients:
            with pytest.raises((EOFError, ConnectionError)):
                await client.until(lambda: False)
            assert client.text("error") and not client.text("error").strip()
            with pytest.raises(ValueError, match="Expecting value"):
                json.loads(client.text("error"))


async def test_a_client_without_reads_does_not_delay_the_stop() -> None:
    """A client without a request does not delay a stop either."""
    async with streaming_server() as streaming:
        silent = await connect(streaming.base)
        deaf = await begun(streaming, "v4.channel.k8s.io")
        async with asyncio.timeout(GOODBYE):
            await streaming.close(0.2)
        for line in (silent, deaf.line):
            line.abort()


async def test_port_forwards_end_with_the_server() -> None:
    async with streaming_server(GOODBYE) as streaming:
        echoes = Echo()
        client = await spdy(streaming.base, streaming.url(forwarding(echoes)), "portforward.k8s.io")
        for kind in ("error", "data"):
            client.streams[kind] = await client.open(streamtype=kind, port="80", requestid="1")
        await echoes.until(lambda: echoes.open == 1)
        closing = asyncio.ensure_future(streaming.close(GOODBYE))
        with pytest.raises((EOFError, ConnectionError)):
            await client.until(lambda: False)
        client.line.close()
        await closing
        await echoes.until(lambda: echoes.open == 0)
