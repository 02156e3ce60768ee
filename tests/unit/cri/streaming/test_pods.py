"""The share of each pod in the streaming server: slots, URLs, memory, frames without effect, messages."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cri.config import StreamingConfig
from cri.streaming import server
from cri.streaming.pods import Pods, Slots
from cri.streaming.process.command import Command
from cri.streaming.process.copy import copy_streams
from cri.streaming.process.exit_status import ExitStatus
from cri.streaming.server import MOST_URLS_OF_POD, serving_streams
from cri.streaming.spdy.encode import SpdyEncoder
from cri.streaming.spdy.frames import Data, FrameType, Ping, SynStream
from cri.streaming.transport.inbox import Inbox
from cri.streaming.transport.quota import (
    IGNORED,
    LIMIT_BYTES,
    POD_LIMIT_BYTES,
    BufferQuota,
    PodQuota,
    StreamMemory,
)
from cri.streaming.transport.session import SpdySession, SpdyStream
from cri.streaming.transport.wire import ClientGone
from daemonkit.faults import Exhausted
from daemonkit.loop.fair_scheduler import CARRIED_SECONDS, FairScheduler
from daemonkit.loop.token_bucket import TokenBucket
from tests.support.cri.hostile_streams import control
from tests.support.cri.stream_client import WEBSOCKET, Answer, connect, key, path_of, websocket
from tests.support.cri.stream_jobs import Play, echo, forever, streaming_server

KEYS = ("all", "one")


class Wire:
    """Plays a client's bytes piece by piece, and counts the bytes sent back."""

    def __init__(self, *pieces: bytes, pod: PodQuota | None = None) -> None:
        self._pieces = list(pieces)
        self.quota = BufferQuota(pod=pod)
        self.sent = b""
        self.gone = asyncio.Event()

    async def receive(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    async def send(self, data: bytes) -> None:
        self.sent += data

    async def hung_up(self) -> None:
        await self.gone.wait()

    async def close(self) -> None:
        """Do nothing."""


def test_a_greedy_namespace_leaves_slots_to_other_namespaces() -> None:
    slots = Slots(1024, 1024, "streams", KEYS)
    for _ in range(1024):
        for name in ("a", "b", "c"):
            for pod in range(300):
                if not slots.trouble(f"{name}-{pod}", name):
                    slots.take(f"{name}-{pod}", name)
    said = slots.trouble("another-pod", "a")
    assert said == "namespace a has 300 streams, its share of the 1024 that all allows"
    assert slots.trouble("honest-pod", "honest") == ""


def test_a_greedy_pod_leaves_slots_to_pods_of_its_namespace() -> None:
    slots = Slots(1024, 128, "streams", KEYS)
    for _ in range(128):
        for pod in range(8):
            if not slots.trouble(f"evil-{pod}", "n"):
                slots.take(f"evil-{pod}", "n")
    assert "as many as are left to its namespace" in slots.trouble("evil-0", "n")
    assert slots.trouble("honest", "n") == ""


def test_a_pod_has_its_own_limit_and_gets_back_slots() -> None:
    slots = Slots(1024, 2, "streams", KEYS)
    first = slots.take("a", "n")
    slots.take("a", "n")
    assert slots.trouble("a", "n") == "pod a has 2 streams, as many as one allows"
    assert slots.trouble("b", "n") == ""
    first()
    assert slots.trouble("a", "n") == ""


def test_a_pool_with_a_single_slot_works() -> None:
    slots = Slots(1, 8, "streams", KEYS)
    assert slots.trouble("a", "n") == ""
    give = slots.take("a", "n")
    assert slots.full
    assert slots.trouble("b", "m") == "all 1 streams that all allows are in use"
    give()
    assert slots.trouble("b", "m") == ""


def test_a_returning_pod_has_no_saved_time() -> None:
    scheduler = FairScheduler()
    busy = scheduler.share()
    busy.used = 5.0
    assert scheduler.free(busy), "the clock is at its time now"
    pods = Pods(scheduler)
    part = pods.part("p", "n")
    assert part is pods.part("p", "n")
    assert part.share.used == 5.0


async def test_a_new_stream_opens_ahead_of_open_streams() -> None:
    scheduler = FairScheduler()
    async with serving_streams(StreamingConfig(), scheduler=scheduler) as streaming:
        busy = scheduler.share()
        busy.used = 5.0
        assert scheduler.free(busy), "the clock is at its time now"
        ahead: list[float] = []

        async def look(_: Command) -> ExitStatus:
            ahead.append(busy.used - streaming.pods.part("honest", "of-honest").share.used)
            return ExitStatus()

        play = Play()
        await websocket(streaming.base, streaming.url(play.job(look, pod="honest")))
        await play.until(lambda: bool(ahead))
        assert 0 < ahead[0] <= CARRIED_SECONDS


async def test_streams_end_once_the_zone_of_their_pod_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LINGER_SECONDS", 0.0)
    async with streaming_server() as streaming:
        play = Play()
        for pod in ("removed", "other"):
            await websocket(streaming.base, streaming.url(play.job(forever, pod=pod)))
        await play.until(lambda: play.begun == 2)
        streaming.pods.end("removed")
        await play.until(lambda: play.cancelled == 1)
        streaming.pods.end("unknown")


async def test_streams_are_refused_to_a_full_pod_and_served_to_other_pods() -> None:
    async with streaming_server(connections=8, connections_per_pod=2) as streaming:
        play, held = Play(), []

        async def asked(pod: str) -> Answer:
            line = await connect(streaming.base)
            held.append(line)
            return await line.ask(path_of(streaming.url(play.job(forever, pod=pod))), *WEBSOCKET, key())

        assert [(await asked("evil")).status for _ in range(3)] == [101, 101, 429]
        refusal = (await asked("evil")).body.decode()
        assert "pod evil has 2 streams, as many as streaming.connections_per_pod allows" in refusal
        assert (await asked("honest")).status == 101
        held[0].abort()
        await play.until(lambda: play.cancelled == 1)
        async with asyncio.timeout(60):
            while (await asked("evil")).status == 429:
                pass


async def test_urls_of_a_pod_do_not_use_up_other_pods_urls() -> None:
    async with streaming_server() as streaming:
        honest = streaming.url(Play().job(echo, pod="honest"))
        for _ in range(MOST_URLS_OF_POD):
            streaming.url(Play().job(echo, pod="evil"))
        with pytest.raises(Exhausted, match="pod evil has 128 unused URLs"):
            streaming.url(Play().job(echo, pod="evil"))
        client = await websocket(streaming.base, honest)
        await client.send(b"\0x")
        await client.send(b"\xff\0")
        await client.until(lambda: client.closed)
        assert client.channel(1) == b"x"


async def test_waiting_large_requests_count_for_their_pod() -> None:
    async with streaming_server(url_lifetime=3600.0) as streaming:
        job = Play().job(echo, pod="evil")
        large = replace(job, size=POD_LIMIT_BYTES // 8)
        with pytest.raises(Exhausted, match="all the memory that a pod may have"):
            for _ in range(MOST_URLS_OF_POD):
                streaming.url(large)
        streaming.url(Play().job(echo, pod="honest"))


async def test_connections_of_a_pod_share_a_bound_of_memory() -> None:
    pod, inboxes = PodQuota(), []
    quotas = [BufferQuota(pod=pod) for _ in range(64)]
    for quota in quotas:
        inbox = Inbox(quota)
        while quota.space.is_set():
            inbox.put(b"x" * 10_000)
        inboxes.append(inbox)
    assert POD_LIMIT_BYTES < pod.used < POD_LIMIT_BYTES + 64 * 11_000
    assert not any(quota.space.is_set() for quota in quotas)
    while inboxes[0].first is not None:
        inboxes[0].taken()
    assert all(quota.space.is_set() for quota in quotas if quota.used <= LIMIT_BYTES // 2), (
        "there is space again"
    )
    for quota in quotas:
        quota.close()
    assert pod.used == 0


async def test_pods_of_a_namespace_beyond_its_share_of_memory_are_not_read_and_others_are() -> None:
    memory = StreamMemory(total=6 * LIMIT_BYTES)
    mine = [BufferQuota(2 * LIMIT_BYTES, PodQuota(2 * LIMIT_BYTES, memory, "a")) for _ in range(4)]
    for quota in mine:
        quota.take(LIMIT_BYTES)
    other = BufferQuota(2 * LIMIT_BYTES, PodQuota(2 * LIMIT_BYTES, memory, "b"))
    other.take(LIMIT_BYTES)
    assert [quota.space.is_set() for quota in (*mine, other)] == [True, True, True, False, True]
    # Another namespace gives memory back, and "a" may have more.
    other.close()
    mine[0].give(LIMIT_BYTES)
    assert mine[3].space.is_set()


async def test_streams_are_refused_when_their_pod_has_too_many() -> None:
    pod = PodQuota(limit=40_000)
    encoder = SpdyEncoder()
    frames = [encoder.encode(SynStream(number, {"a": ("b",)})) for number in range(1, 200, 2)]
    wire = Wire(b"".join(frames), pod=pod)
    opened: list[SpdyStream] = []
    await SpdySession(wire, lambda stream: not opened.append(stream)).run()  # type: ignore[func-returns-value]
    assert len(opened) == 5, "half of the memory is for what they carry"


async def test_frames_without_effect_slow_down_their_client_and_end_nothing() -> None:
    ignored = TokenBucket(IGNORED, 1000.0, lambda: 0.0)
    ping = SpdyEncoder().encode(Ping(1))
    frames = ping + control(FrameType.SETTINGS, bytes(4)) + struct.pack(">II", 9, 0)
    wire = Wire(frames * 420)
    wire.quota = BufferQuota(ignored=ignored)
    begun = asyncio.get_running_loop().time()
    await SpdySession(wire, lambda stream: False).run()
    assert asyncio.get_running_loop().time() - begun >= 1.0, "it was not read for a while"
    assert wire.sent.count(ping) == 420, "and each ping was answered"


async def test_a_slowed_down_client_may_hang_up() -> None:
    wire = Wire(SpdyEncoder().encode(Ping(1)) * 2000)
    wire.quota = BufferQuota(ignored=TokenBucket(1.0, 1e-9))
    wire.gone.set()
    async with asyncio.timeout(60):
        with pytest.raises(ClientGone, match="hung up"):
            await SpdySession(wire, lambda stream: False).run()


class Recorder:
    """A process that counts its messages, and never ends by itself."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.ended = asyncio.Event()

    async def stdin(self, data: bytes) -> None:
        self.messages.append(data)

    async def stdin_eof(self) -> None:
        self.ended.set()

    async def resize(self, rows: int, columns: int) -> None:
        self.messages.append((rows, columns))

    async def outputs(self) -> Any:
        await self.ended.wait()
        yield SimpleNamespace(WhichOneof=lambda name: "nothing")


async def test_single_byte_frames_of_a_read_are_joined_into_a_message() -> None:
    encoder = SpdyEncoder()
    opening = encoder.encode(SynStream(1, {"streamtype": ("stdin",)}))
    frames = b"".join(encoder.encode(Data(1, b"%d" % (n % 10))) for n in range(5000))
    wire = Wire(opening, frames, encoder.encode(Data(1, b"", fin=True)))
    found: list[SpdyStream] = []
    opened = asyncio.Event()

    def accept(stream: SpdyStream) -> bool:
        found.append(stream)
        opened.set()
        return True

    session = SpdySession(wire, accept)
    share = FairScheduler().share()
    process: Any = Recorder()

    async def serve() -> None:
        running = asyncio.ensure_future(share.pay(session.run))
        await opened.wait()
        command: Any = type("Client", (), {"stdin": found[0].input, "resizes": None})
        await copy_streams(process, command, stdin=True, tty=False)
        await running

    async with asyncio.timeout(60):
        await serve()
    assert process.messages == [b"0123456789" * 500]


async def test_of_simultaneous_sizes_the_last_counts() -> None:
    quota = BufferQuota()
    resizes, stdin = Inbox(quota), Inbox(quota)
    for width in range(1, 1000):
        resizes.put(b'{"Width":%d,"Height":1}' % width)
    stdin.put(b"x")
    stdin.end()
    process: Any = Recorder()
    command: Any = type("Client", (), {"stdin": stdin, "resizes": resizes})
    async with asyncio.timeout(60):
        await copy_streams(process, command, stdin=True, tty=True)
    assert process.messages == [(1, 999), b"x"]


async def test_streams_leave_their_turns_to_others() -> None:
    """A flooding client is served a part of its frames while another client's frames are all carried out."""
    flood = struct.pack(">II", 3, 1) + b"x"

    async def drain(command: Command) -> ExitStatus:
        assert command.stdin is not None
        while await command.stdin.read():
            pass
        return ExitStatus()

    async with streaming_server() as streaming:
        evil = await connect(streaming.base)
        headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")]
        url = streaming.url(Play().job(drain, pod="evil"))
        await evil.ask(path_of(url), *headers, ("X-Stream-Protocol-Version", "v4.channel.k8s.io"))
        encoder = SpdyEncoder()
        for number, kind in enumerate(("error", "stdin", "stdout", "stderr")):
            await evil.send(encoder.encode(SynStream(2 * number + 1, {"streamtype": (kind,)})))

        async def send() -> None:
            while True:
                await evil.send(flood * 20_000)

        sending = asyncio.ensure_future(send())
        honest = await websocket(streaming.base, streaming.url(Play().job(echo, pod="honest")))
        for _ in range(100):
            await honest.send(b"\0x")
            before = len(honest.channel(1))
            await honest.until(lambda before=before: len(honest.channel(1)) > before)
        assert not sending.done(), "it was not cut off"
        sending.cancel()
