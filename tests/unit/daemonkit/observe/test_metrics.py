"""Metrics over real sockets: traces of a server's calls, and the text for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from daemonkit import faults
from daemonkit.convert import WrongKey
from daemonkit.observe.exposition import serving_metrics
from daemonkit.observe.observe_settings import MetricsConfig
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from tests.support.observe import some_zones
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

ANY_PORT = MetricsConfig("127.0.0.1:0")


async def http(port: int, request: bytes) -> tuple[bytes, bytes]:
    """The head and the body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


async def scrape(port: int) -> Callable[..., float]:
    """The samples, as a function from a name and its labels; 0 for a missing sample."""
    head, body = await http(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    return lambda name, **labels: found.get((name, frozenset(labels.items())), 0.0)


async def test_calls_are_counted_by_status_and_timed(tmp_path: Path) -> None:
    async with (
        serve_unix(tmp_path / "s", some_zones.add, name="p", grace=0.1),
        channel(tmp_path / "s") as link,
        serving_metrics(ANY_PORT, "test") as port,
    ):
        zones = protect_pb2_grpc.ZonesStub(link)
        rpc = {"grpc_service": "protect.v1.Zones", "grpc_method": "GetZone"}
        before = await scrape(port)
        await zones.GetZone(pb.GetZoneRequest(id="z"))
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError):
                await zones.GetZone(pb.GetZoneRequest(id="none"))
        with pytest.raises(grpc.aio.AioRpcError):
            await link.unary_unary("/protect.v1.Zones/Made-up", None, None)(b"")
        after = await scrape(port)

        def more(name: str, **labels: str) -> float:
            return after(name, **labels) - before(name, **labels)

        assert more("grpc_server_handled_total", **rpc, grpc_code="OK") == 1
        assert more("grpc_server_handled_total", **rpc, grpc_code="NOT_FOUND") == 2
        assert more("grpc_server_handling_seconds_count", **rpc) == 3
        assert more("xenpod_errors_total", reason="Missing") == 2
        assert after("xenpod_calls_open") == before("xenpod_calls_open")
        made_up = {"grpc_service": "protect.v1.Zones", "grpc_method": "Made-up"}
        assert after("grpc_server_handled_total", **made_up, grpc_code="UNIMPLEMENTED") == 0
        assert after("process_resident_memory_bytes") > 0


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 40_000, b"431"),
    ],
)
async def test_other_requests_are_refused(request_bytes: bytes, status: bytes) -> None:
    async with serving_metrics(ANY_PORT, "test") as port:
        head, _ = await http(port, request_bytes)
        assert head.split()[1] == status


async def test_openmetrics_is_served_on_request() -> None:
    async with serving_metrics(ANY_PORT, "test") as port:
        accept = b"Accept: application/openmetrics-text;version=1.0.0\r\n"
        head, body = await http(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + accept + b"\r\n")
        assert b"application/openmetrics-text" in head and body.endswith(b"# EOF\n")


async def test_figures_are_read_for_each_scrape_and_left_out_when_they_cannot_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looked = 0

    async def look() -> list[Metric]:
        nonlocal looked
        looked += 1
        return [GaugeMetricFamily("looked", "How often.", looked)]

    async def fail() -> list[Metric]:
        raise faults.Unreachable("list domains", "", "xenstored is gone")

    async with serving_metrics(ANY_PORT, "test", [fail, look]) as port:
        before = await scrape(port)
        after = await scrape(port)
    assert (before("looked"), after("looked")) == (1, 2)
    assert after("xenpod_figures_unread_total") == before("xenpod_figures_unread_total") + 1
    assert "xenstored is gone" in caplog.text


async def test_an_address_in_use_is_the_keys_fault() -> None:
    async with serving_metrics(ANY_PORT, "test") as port:
        with pytest.raises(WrongKey, match=r"metrics\.address"):
            async with serving_metrics(MetricsConfig(f"127.0.0.1:{port}"), "test"):
                pass


async def test_nothing_is_served_without_an_address() -> None:
    async with serving_metrics(MetricsConfig(), "test") as port:
        assert port == 0


async def test_connections_are_bounded() -> None:
    async with serving_metrics(ANY_PORT, "test") as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(16)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""  # closed at once
        for _, one in [*idle, (reader, writer)]:
            one.close()
