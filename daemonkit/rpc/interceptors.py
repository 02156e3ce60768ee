"""Intercepts every RPC: runs it in a new task, maps faults to status codes, writes a log line."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio

from daemonkit import faults
from daemonkit.logs import fields
from daemonkit.loop.in_flight import InFlight
from daemonkit.observe.calls import CallObserver, ObservedCall, ObservedMethod
from daemonkit.tasks import Background

log = logging.getLogger(__name__)

CODES: Mapping[type[faults.Fault], grpc.StatusCode] = {
    faults.Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    faults.Missing: grpc.StatusCode.NOT_FOUND,
    faults.Exists: grpc.StatusCode.ALREADY_EXISTS,
    faults.Refused: grpc.StatusCode.FAILED_PRECONDITION,
    faults.Exhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    faults.TooLate: grpc.StatusCode.DEADLINE_EXCEEDED,
    faults.Unreachable: grpc.StatusCode.UNAVAILABLE,
    faults.Denied: grpc.StatusCode.PERMISSION_DENIED,
    faults.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    faults.Broken: grpc.StatusCode.INTERNAL,
}
_KINDS: Mapping[grpc.StatusCode, type[faults.Fault]] = {code: kind for kind, code in CODES.items()}

TEXT_LIMIT = 2048
"""Most characters of a status text; it travels percent-encoded in an HTTP/2 trailer of limited size."""

_SLOW_SECONDS = 10.0
_READ_ONLY = "xenpod_read_only"
# servicer methods and messages are generated code; grpc's types leave them open
_Behaviour = Callable[[Any, Any], Any]
F = TypeVar("F", bound=Callable[..., Any])
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def code_of(fault: faults.Fault) -> grpc.StatusCode:
    """The status code of a fault: of its nearest class in the table."""
    return next((CODES[kind] for kind in type(fault).__mro__ if kind in CODES), grpc.StatusCode.INTERNAL)


def fault_of(error: grpc.aio.AioRpcError, operation: str, subject: str) -> faults.Fault:
    """The fault for a callee's status, with the callee's words."""
    kind = _KINDS.get(error.code(), faults.Broken)
    said = (error.details() or error.code().name).removeprefix(f"{operation} {subject}: ")
    return kind(operation, subject, clip(said))


def clip(text: str) -> str:
    """``text`` cut to the limit of a status text."""
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 3] + "..."


def read_only(handler: F) -> F:
    """Mark a handler that changes nothing: it may be cancelled at any point, and needs no task."""
    setattr(handler, _READ_ONLY, True)
    return handler


def is_read_only(handler: Callable[..., Any]) -> bool:
    """Whether a handler is marked ``read_only``."""
    return getattr(handler, _READ_ONLY, False)


@dataclass(eq=False, slots=True)
class _Subscription:
    """``listening``: the call waits for its next message, and may be cancelled.  Otherwise gRPC is sending: a
    cancelled call would then get no status, and the server would wait for the call.
    """

    task: asyncio.Task[Any]
    listening: bool = False


class CallGuard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Wraps every handler of a server.

    Each handler with one reply runs in a task of ``tasks``, unless ``read_only``.  A departing client cancels
    the task once; further cancellations, for instance at the end of the server, do not reach the task's undo.
    Streaming handlers run in gRPC's own task.
    """

    def __init__(
        self,
        server: str,
        tasks: Background,
        in_flight: InFlight | None = None,
        observer: CallObserver | None = None,
    ) -> None:
        self._server = server
        self._tasks = tasks
        self._in_flight = in_flight or InFlight()
        self._observer = observer or CallObserver()
        self._subscriptions: set[_Subscription] = set()
        self._stopping = False
        self._wrapped: dict[str, tuple[_Handler, _Handler]] = {}

    def end_subscriptions(self) -> None:
        """End each listening call with UNAVAILABLE, because it would never end by itself."""
        self._stopping = True
        for subscription in self._subscriptions:
            if subscription.listening:
                subscription.task.cancel()

    async def intercept_service(  # type: ignore[override]  # the stubs leave out that there may be none
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """The wrapped handler of the call; None without a handler (UNIMPLEMENTED)."""
        handler = await continuation(details)
        if handler is None:
            return None
        known = self._wrapped.get(details.method)
        if known is None or known[0] is not handler:
            # bounded by the server's methods: unknown ones have no handler
            known = self._wrapped[details.method] = (handler, self._wrap(details.method, handler))
        return known[1]

    def _wrap(self, name: str, handler: _Handler) -> _Handler:
        make = _MAKERS[handler.request_streaming, handler.response_streaming]
        inner = next(
            behaviour
            for behaviour in (
                handler.unary_unary,
                handler.unary_stream,
                handler.stream_unary,
                handler.stream_stream,
            )
            if behaviour is not None
        )
        streams = handler.response_streaming
        method = self._observer.method(name, timed=not streams, reads=is_read_only(inner))
        call = self._stream(method, inner) if handler.response_streaming else self._unary(method, inner)
        if handler.response_streaming and not handler.request_streaming:
            call = self._subscription(call)
        return make(call, handler.request_deserializer, _serializer(handler.response_serializer))

    def _unary(self, method: ObservedMethod, inner: _Behaviour) -> _Behaviour:
        reads = is_read_only(inner)

        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            observed = method.begin(request, context)
            try:
                with self._in_flight.call(), observed.span(context):
                    work = inner(request, context)
                    reply = await (work if reads else self._tasks.run(work, method.name))
            except BaseException as error:
                await self._fail(observed, error, context)
            observed.replied(reply)
            self._ended(observed, "OK", slow=True)
            return reply

        return call

    def _stream(self, method: ObservedMethod, inner: _Behaviour) -> _Behaviour:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            observed = method.begin(request, context)
            if method.audit is not None and isinstance(request, AsyncIterable):
                request = observed.first(request)
            self._in_flight.stream()
            try:
                replies = inner(request, context)
                if inspect.isawaitable(replies):
                    await replies  # the handler writes through the context
                else:
                    async for reply in replies:
                        yield reply
            except GeneratorExit:
                self._ended(observed, "ABANDONED")
                raise
            except BaseException as error:
                await self._fail(observed, error, context)
            self._ended(observed, "OK")

        return call

    def _subscription(self, inner: _Behaviour) -> _Behaviour:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            task = asyncio.current_task()
            assert task is not None
            subscription = _Subscription(task)
            self._subscriptions.add(subscription)
            try:
                async with contextlib.aclosing(inner(request, context)) as replies:
                    while not self._stopping:
                        subscription.listening = True
                        reply = await anext(replies, None)
                        subscription.listening = False
                        if reply is None:
                            return
                        yield reply
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"{self._server} is stopping")
            finally:
                self._subscriptions.discard(subscription)

        return call

    async def _fail(
        self, observed: ObservedCall, error: BaseException, context: grpc.aio.ServicerContext[Any, Any]
    ) -> NoReturn:
        """End the call with the status for ``error``."""
        if isinstance(error, asyncio.CancelledError):
            self._ended(observed, "CANCELLED")
            if self._stopping:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"{self._server} is stopping")
            raise error
        if isinstance(error, grpc.aio.AbortError) or not isinstance(error, Exception):
            self._ended(observed, "ABORTED")
            raise error
        method = observed.method.name
        code, text = _status(method, error)
        if code is grpc.StatusCode.INTERNAL and not isinstance(error, faults.Fault):
            log.error("unexpected error in %s", method, exc_info=error, extra=fields(server=self._server))
        self._ended(observed, code.name, text, error)
        await context.abort(code, clip(text))
        raise AssertionError("abort returned")

    def _ended(
        self,
        observed: ObservedCall,
        code: str,
        text: str = "",
        error: Exception | None = None,
        *,
        slow: bool = False,
    ) -> None:
        observed.ended(code, error)
        seconds = time.monotonic() - observed.begun
        late = slow and seconds >= _SLOW_SECONDS
        level = logging.WARNING if late else logging.INFO if text else logging.DEBUG
        if not log.isEnabledFor(level):
            return
        values: dict[str, object] = {"server": self._server, "code": code, "ms": seconds * 1000}
        if text:
            values["error"] = text
        log.log(level, "%s%s", "slow call " if late else "", observed.method.name, extra=fields(**values))


def _status(method: str, error: Exception) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, faults.Fault):
        return code_of(error), str(error)
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code(), error.details() or error.code().name
    if isinstance(error, NotImplementedError):  # the generated servicer's own method
        return grpc.StatusCode.UNIMPLEMENTED, f"{method} is not implemented"
    return (
        grpc.StatusCode.INTERNAL,
        f"{method}: unexpected {type(error).__name__}; the daemon's log says more",
    )


def _serializer(inner: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """A serializer that also accepts encoded messages."""
    if inner is None:
        return None
    return lambda reply: reply if type(reply) is bytes else inner(reply)


_MAKERS: Mapping[tuple[bool, bool], Callable[..., _Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
