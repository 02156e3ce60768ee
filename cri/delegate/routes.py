"""Routes RPCs to one of the two runtimes.

Messages pass unchanged, byte for byte with their unknown fields, unless a change is necessary.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from cri.delegate.kinds import METHODS, parsed, request_type
from cri.delegate.link import RUNTIME, Delegate, passed_on, remaining
from cri.delegate.owners import Owner, Owners
from daemonkit.rpc.interceptors import is_read_only, read_only

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Answer: TypeAlias = bytes | Message
Behaviour = Callable[[bytes, _Context], Awaitable[Answer]]
StreamBehaviour = Callable[[bytes, _Context], AsyncGenerator[Answer, None]]

POD_CALLS = frozenset(
    {"StopPodSandbox", "RemovePodSandbox", "PodSandboxStatus", "PortForward", "PodSandboxStats",
     "UpdatePodSandboxResources", "CreateContainer"}
)  # fmt: skip
"""RPCs about one pod, with its id in field 1 of the request."""
CONTAINER_CALLS = frozenset(
    {"StartContainer", "StopContainer", "RemoveContainer", "ContainerStatus", "UpdateContainerResources",
     "ReopenContainerLog", "ExecSync", "Exec", "Attach", "ContainerStats", "CheckpointContainer"}
)  # fmt: skip
"""RPCs about one container, likewise."""


class ById:
    """An RPC about a pod or container, routed to its owner."""

    def __init__(self, method: str, owners: Owners, delegate: Delegate, servicer: Any) -> None:
        self.method = method
        self._owners = owners
        self._delegate = delegate
        self._ours = getattr(servicer, method)
        self._reads = is_read_only(self._ours)
        self._request = request_type(method)
        self._id = METHODS[method].input_type.fields_by_number[1].name

    async def call(self, raw: bytes, context: _Context) -> Answer:
        """The owner's answer."""
        request = parsed(self.method, self._request, raw)
        wanted: str = getattr(request, self._id)
        owner = await self._owners.owner(wanted)
        await self.before(owner, request)
        if owner is Owner.OURS:
            return await self._ours(request, context)  # type: ignore[no-any-return]
        answer = await self.theirs(raw, context)
        self.after(wanted, request, answer)
        return answer

    async def theirs(self, raw: bytes, context: _Context) -> bytes:
        """The delegate's answer; AioRpcError is the delegate's own status."""
        left, metadata = remaining(context), passed_on(context)
        timeout = self._delegate.reads(left) if self._reads else left
        return await self._delegate.call(RUNTIME + self.method, raw, timeout, metadata)

    async def before(self, owner: Owner, request: Any) -> None:
        """Hook before the call: preparations of the RPC."""

    def after(self, wanted: str, request: Any, answer: bytes) -> None:
        """Hook after the delegate's answer: effects of the RPC on the delegate."""


def unary(behaviour: Behaviour, like: Callable[..., Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """A unary handler with encoded requests, ``read_only`` if ``like``, our own method, is read-only."""

    async def call(raw: bytes, context: _Context) -> Answer:
        try:
            return await behaviour(raw, context)
        except grpc.aio.AioRpcError as error:
            await end_with(error, context)

    return grpc.unary_unary_rpc_method_handler(
        read_only(call) if is_read_only(like) else call, response_serializer=encoded_answer
    )


def streaming(behaviour: StreamBehaviour) -> grpc.RpcMethodHandler[Any, Any]:
    """A streaming handler with encoded requests."""

    async def call(raw: bytes, context: _Context) -> AsyncIterator[Answer]:
        async with contextlib.aclosing(behaviour(raw, context)) as answers:
            try:
                async for answer in answers:
                    yield answer
            except grpc.aio.AioRpcError as error:
                await end_with(error, context)

    return grpc.unary_stream_rpc_method_handler(call, response_serializer=encoded_answer)


async def end_with(error: grpc.aio.AioRpcError, context: _Context) -> NoReturn:
    """End a call with the delegate's status unchanged: code, details, trailing metadata."""
    trailing: Any = error.trailing_metadata() or ()  # pairs, but not in the stubs
    await context.abort(error.code(), error.details() or "", tuple(trailing))
    raise AssertionError("abort returned")


def encoded_answer(answer: Answer) -> bytes:
    """The bytes of an answer, encoded or not."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def generic(handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> grpc.GenericRpcHandler[Any, Any]:
    """RuntimeService with these handlers, by method name."""
    return grpc.method_handlers_generic_handler(RUNTIME.strip("/"), dict(handlers))
