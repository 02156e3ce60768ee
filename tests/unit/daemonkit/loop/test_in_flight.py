"""Calls that count as in flight, over a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest

from daemonkit.loop import in_flight
from daemonkit.loop.in_flight import AFTER_SECONDS, LATELY_SECONDS, LONGEST_SECONDS, InFlight
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as rpc

TIMEOUT = 60.0


class Clock:
    """Time that passes only by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(in_flight, "time", clock)
    yield clock


class Zones(rpc.ZonesServicer):
    """Answers at the test's signal, or fails."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def GetZone(self, request, context):  # type: ignore[no-untyped-def]
        self.begun.set()
        await self.go_on.wait()
        return pb.Zone(id=request.id)


class Host(rpc.HostServicer):
    """Sends a single message and then nothing."""

    async def Watch(self, request, context):  # type: ignore[no-untyped-def]
        yield pb.WatchEvent(zone_gone="z1")
        await asyncio.Event().wait()


class Served:
    """A server that counts its calls."""

    def __init__(self, counted: InFlight, zones: Zones, link: grpc.aio.Channel) -> None:
        self.in_flight, self.zones = counted, zones
        self.zones_stub, self.host_stub = rpc.ZonesStub(link), rpc.HostStub(link)


@pytest.fixture
async def served(tmp_path: Path, clock: Clock) -> AsyncIterator[Served]:
    zones, counted = Zones(), InFlight()

    def add(server: grpc.aio.Server) -> None:
        rpc.add_ZonesServicer_to_server(zones, server)
        rpc.add_HostServicer_to_server(Host(), server)

    path = tmp_path / "s"
    async with serve_unix(path, add, name="test", grace=0.1, in_flight=counted), channel(path) as link:
        yield Served(counted, zones, link)


async def test_a_unary_call_counts_until_its_end_and_a_little_longer(served: Served, clock: Clock) -> None:
    assert not served.in_flight.any()
    call = served.zones_stub.GetZone(pb.GetZoneRequest(id="z1"), timeout=TIMEOUT)
    await asyncio.wait_for(served.zones.begun.wait(), TIMEOUT)
    clock.now += 5 * AFTER_SECONDS
    assert served.in_flight.any()
    served.zones.go_on.set()
    await call
    clock.now += 0.9 * AFTER_SECONDS
    assert served.in_flight.any(), "the next call of the same pod's start follows"
    clock.now += 0.2 * AFTER_SECONDS
    assert not served.in_flight.any()


async def test_a_call_of_a_gone_client_counts_no_longer(served: Served, clock: Clock) -> None:
    call = served.zones_stub.GetZone(pb.GetZoneRequest(id="z1"), timeout=TIMEOUT)
    await asyncio.wait_for(served.zones.begun.wait(), TIMEOUT)
    call.cancel()
    served.zones.go_on.set()
    # The server's end comes after the client's.
    async with asyncio.timeout(TIMEOUT):
        while served.in_flight.any():
            clock.now += 2 * AFTER_SECONDS
            await asyncio.sleep(0.01)
    assert clock.now < 1000 + LONGEST_SECONDS


async def test_only_the_beginning_of_a_stream_counts(served: Served, clock: Clock) -> None:
    stream = served.host_stub.Watch(pb.WatchRequest(), timeout=TIMEOUT)
    await stream.read()
    assert served.in_flight.any()
    clock.now += 1.1 * LATELY_SECONDS
    assert not served.in_flight.any()
    stream.cancel()


def test_a_call_waiting_for_a_container_does_not_count_for_ever(clock: Clock) -> None:
    counted = InFlight()
    with counted.call():
        clock.now += LONGEST_SECONDS - 1
        assert counted.any()
        clock.now += 2
        assert not counted.any()
        with counted.call():
            assert counted.any(), "another call counts by itself"
        clock.now += 2 * AFTER_SECONDS
        assert not counted.any()
