"""A receiver of OTLP over gRPC, as an OpenTelemetry collector has one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span, and the daemon that sent the span."""

    service: str
    span: trace_pb2.Span

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace(self) -> str:
        return self.span.trace_id.hex()


class Collector(rpc.TraceServiceServicer):
    """Keeps the received spans."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.endpoint = ""
        self._more = asyncio.Condition()

    async def Export(self, request, context):  # type: ignore[no-untyped-def]
        async with self._more:
            self.spans += _received(request)
            self._more.notify_all()
        return otlp.ExportTraceServiceResponse()

    async def of_trace(self, trace: str, *names: str) -> list[ReceivedSpan]:
        """The spans of a trace, once spans with these names are here."""

        def here() -> bool:
            return set(names) <= {span.name for span in self.spans if span.trace == trace}

        async with asyncio.timeout(60), self._more:
            await self._more.wait_for(here)
        return [span for span in self.spans if span.trace == trace]


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector that serves on a port of its own."""
    collector, server = Collector(), grpc.aio.server()
    rpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(0)


def _received(request: otlp.ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for of_resource in request.resource_spans:
        named = {one.key: one.value.string_value for one in of_resource.resource.attributes}
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield ReceivedSpan(named["service.name"], span)
