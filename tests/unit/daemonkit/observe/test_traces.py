"""Traces without daemons: the cost of a silent collector, and the attributes of a call."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest
from opentelemetry.proto.trace.v1 import trace_pb2

from daemonkit.observe import traces
from daemonkit.observe.observe_settings import TracesConfig
from daemonkit.observe.steps import step
from daemonkit.observe.traces import tracing
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from tests.support.observe import some_zones
from tests.support.observe.collector import collecting
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc


async def test_the_end_does_not_wait_for_a_hanging_collector(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traces, "_LAST", 0.2)
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent:
        async with tracing(TracesConfig(f"http://127.0.0.1:{port}", sampling=1.0), "p"):
            with step("test.step"):
                assert traces.on()
        assert not traces.on() and "are lost" in caplog.text
        for writer in held:
            writer.close()


async def test_without_a_collector_nothing_is_traced(tmp_path: Path) -> None:
    async with tracing(TracesConfig(), "p"), channel(tmp_path / "s") as link:
        assert not traces.on() and traces.traced(link) is link
        with step("test.step"), pytest.raises(ValueError, match="inside"), step("test.fails"):
            raise ValueError("inside")


async def test_steps_of_no_call_are_sent_too() -> None:
    async with collecting() as collector:
        async with tracing(TracesConfig(collector.endpoint, sampling=1.0), "p"):
            for number in range(1000):
                with step("test.step", number=str(number)):
                    pass
        numbers = [one.span.attributes[0].value.string_value for one in collector.spans]
        assert numbers == [str(number) for number in range(1000)]


async def test_a_call_and_its_service_share_a_trace_with_the_calls_status(tmp_path: Path) -> None:
    async with (
        collecting() as collector,
        serve_unix(tmp_path / "s", some_zones.add, name="p", grace=0.1),
        channel(tmp_path / "s") as link,
    ):
        async with tracing(TracesConfig(collector.endpoint, sampling=1.0), "p"):
            zones: protect_pb2_grpc.ZonesAsyncStub = protect_pb2_grpc.ZonesStub(traces.traced(link))
            assert (await zones.GetZone(pb.GetZoneRequest(id="z"), timeout=60)).id == "z"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await zones.GetZone(pb.GetZoneRequest(id="none"), timeout=60, metadata=(("key", "kept"),))
        assert (await zones.GetZone(pb.GetZoneRequest(id="z"), timeout=60)).id == "z"  # traced no longer
    assert [one.name for one in collector.spans] == 4 * ["protect.v1.Zones/GetZone"]
    found = [one.span for one in collector.spans]
    called = {one.span_id: one for one in found if one.kind == trace_pb2.Span.SPAN_KIND_CLIENT}
    served = [one for one in found if one.kind == trace_pb2.Span.SPAN_KIND_SERVER]
    assert [called[one.parent_span_id].trace_id for one in served] == [one.trace_id for one in served]
    codes = [(code(one), one.status.message) for one in called.values()]
    assert codes == [("OK", ""), ("NOT_FOUND", f"AioRpcError: {caught.value.details()}")]


def code(span: trace_pb2.Span) -> str:
    (said,) = (one.value.string_value for one in span.attributes if one.key == "rpc.grpc.status_code")
    return said
