"""An independent record of CRI calls: a proxy in front of a daemon notes each call.

The proxy also plants secrets: a password in each pull, an environment variable in each container.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from xenpod_proto.cri.v1 import runtime_pb2 as cri

PLANTED = "pl4nted-s3cret"
PULLED_AS = "pl4nted-user"

_LONGEST = 16 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _LONGEST),
    ("grpc.max_send_message_length", _LONGEST),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(slots=True)
class RecordedCall:
    """A call that ended; ``begun`` and ``ended`` are places in the order of all beginnings and ends."""

    rpc: str
    request: dict[str, Any]
    begun: int
    ended: int = 0
    code: str = ""
    given_up: bool = False
    """The client went away first: the daemon's status of the call is unknown here."""


@dataclass
class CallRecord:
    """The calls until now."""

    calls: list[RecordedCall] = field(default_factory=list)
    _places: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)

    def begin(self, rpc: str, request: Message) -> RecordedCall:
        said = MessageToDict(request, preserving_proto_field_name=True)
        return RecordedCall(rpc, said, self._places())

    def end(self, call: RecordedCall, code: str, *, given_up: bool = False) -> None:
        call.ended, call.code, call.given_up = self._places(), code, given_up
        self.calls.append(call)


def plant(request: Message) -> None:
    """Put the secret where registries' passwords and environments are."""
    if isinstance(request, cri.PullImageRequest):
        request.auth.username, request.auth.password = PULLED_AS, PLANTED
    if isinstance(request, cri.CreateContainerRequest):
        request.config.envs.add(key="PLANTED", value=PLANTED.encode())


@contextlib.asynccontextmanager
async def recording(target: Path, socket: Path) -> AsyncIterator[CallRecord]:
    """Serve CRI at ``socket`` by handing each call on to ``target``."""
    record, server = CallRecord(), grpc.aio.server(options=_OPTIONS)
    async with grpc.aio.insecure_channel(f"unix:{target}", options=_OPTIONS) as link:
        for service in cri.DESCRIPTOR.services_by_name.values():
            handlers = {method.name: _handler(record, link, method) for method in service.methods}
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service.full_name, handlers),)
            )
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            yield record
        finally:
            await server.stop(0)


def _handler(record: CallRecord, link: grpc.aio.Channel, method: MethodDescriptor) -> Any:
    rpc = f"{method.containing_service.full_name}/{method.name}"
    asked, answered = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    codec: Mapping[str, Any] = {
        "request_serializer": asked.SerializeToString,
        "response_deserializer": answered.FromString,
    }
    back = (asked.FromString, answered.SerializeToString)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            _streaming(record, rpc, link.unary_stream(f"/{rpc}", **codec)), *back
        )
    return grpc.unary_unary_rpc_method_handler(
        _unary(record, rpc, link.unary_unary(f"/{rpc}", **codec)), *back
    )


def _unary(record: CallRecord, rpc: str, ask: Any) -> Any:
    async def call(request: Message, context: Any) -> Any:
        plant(request)
        noted = record.begin(rpc, request)
        try:
            reply = await ask(request, timeout=context.time_remaining())
        except grpc.aio.AioRpcError as error:
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            record.end(noted, error.code().name, given_up=late)
            await context.abort(error.code(), error.details() or "")
        except BaseException:
            record.end(noted, "", given_up=True)
            raise
        record.end(noted, "OK")
        return reply

    return call


def _streaming(record: CallRecord, rpc: str, ask: Any) -> Any:
    """Streams only read, and are handed on without a note."""

    async def call(request: Message, context: Any) -> AsyncIterator[Any]:
        try:
            async for reply in ask(request):
                yield reply
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")

    return call
