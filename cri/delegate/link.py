"""The client of the delegate.  Messages are sent and received encoded.

The delegate's own status is raised unchanged (AioRpcError).  Errors on this side are Faults: Unreachable,
TooLate (no answer in time), Refused (the delegate is itself a xenpod-cri), Broken (the answer is too large).
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from cri.delegate.config import DelegateConfig
from daemonkit.faults import Broken, Fault, Refused, TooLate, Unreachable
from daemonkit.logs import fields
from daemonkit.observe.steps import step
from daemonkit.rpc.channels import MESSAGE_LIMIT_BYTES, channel
from daemonkit.rpc.interceptors import clip
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

RUNTIME = "/runtime.v1.RuntimeService/"
IMAGES = "/runtime.v1.ImageService/"
OURSELVES = "xenpod"
"""``runtime_name`` of each xenpod-cri's Version."""
HOP = "xenpod-delegated"
"""Metadata of all calls that we pass on: a xenpod-cri refuses calls that already carry this mark."""

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
# grpc.aio's own types do not name the messages.
_Call: TypeAlias = "grpc.aio.UnaryUnaryCall[bytes, bytes]"
_Stream: TypeAlias = "grpc.aio.UnaryStreamCall[bytes, bytes]"

_ASK = "ask the delegate"
_HOPPED: Metadata = ((HOP, "1"),)
# A Go server's trailers may be far larger than gRPC's 8 KiB, and an error must reach our caller whole.
_TRAILERS_BYTES = 1024 * 1024
_OPTIONS = (("grpc.max_metadata_size", _TRAILERS_BYTES), ("grpc.absolute_max_metadata_size", _TRAILERS_BYTES))
_OUR_DEADLINE = "Deadline Exceeded"  # gRPC for C writes this when a deadline passes on this side


class CallerLeft(TooLate):
    """The caller's own deadline passed.  This says nothing about the delegate."""


class TooLarge(Broken):
    """The delegate answers, and is not away, but its list is larger than a message."""


class Delegate:
    """The other runtime, reached by its socket."""

    def __init__(self, config: DelegateConfig) -> None:
        self.endpoint = config.endpoint
        self.timeout = float(config.timeout)
        """Deadline of read-only calls, in seconds."""
        self.trouble = f"{self.endpoint} has not answered yet"
        """Why the delegate does not answer, or "".  Set by ``lost``, cleared by ``cri.delegate.follow``."""
        self.too_large: dict[str, str] = {}
        """By method, why lists cannot be shown although the delegate answers."""
        self._lost_at = time.monotonic()
        self._lost: list[Callable[[], None]] = []
        self._channel = channel(config.path, _OPTIONS)
        self._unary: dict[str, Any] = {}
        self._streams: dict[str, Any] = {}
        self.ever_answered = False
        """Whether the delegate has answered, now or in an earlier run, and may have pods (``stored.py``)."""
        self._introduced = False
        self.introductions = 0
        """Number of identity checks: the first, and one after each return of the delegate."""

    async def close(self) -> None:
        """Close the connection and end all calls."""
        await self._channel.close(None)

    def on_lost(self, told: Callable[[], None]) -> None:
        """Call ``told`` whenever the delegate turns out not to answer."""
        self._lost.append(told)

    def lost(self, trouble: str) -> None:
        """Note that the delegate does not answer.  Until it answers, no caller waits for its lists."""
        if not self.trouble:
            self._lost_at = time.monotonic()
        self.trouble = clip(trouble if self.endpoint in trouble else f"{self.endpoint}: {trouble}")
        for told in self._lost:
            told()

    def list_fits(self, method: str, trouble: str = "") -> None:
        """Note why a list cannot be shown although the delegate answers; "": the list can be shown."""
        if trouble and method not in self.too_large:
            log.warning("the delegate's list is not shown: %s", trouble, extra=fields(list=method))
        if trouble:
            self.too_large[method] = clip(trouble)
        else:
            self.too_large.pop(method, None)

    def silent(self) -> float:
        """Seconds since the delegate last answered; 0 while it answers."""
        return time.monotonic() - self._lost_at if self.trouble else 0.0

    def reads(self, remaining: float | None, times: int = 1) -> float:
        """The timeout of a read-only call, for a caller with ``remaining`` seconds left.

        At most ``times`` the configured timeout, because some calls take a runtime longer.
        """
        most = self.timeout * times
        return most if remaining is None else min(most, remaining)

    async def call(
        self, method: str, request: bytes, timeout: float | None, metadata: Metadata = ()
    ) -> bytes:
        """Make one call, for example ``RUNTIME + "Version"``; a ``timeout`` of None is no deadline.

        AioRpcError: the delegate's own status.  Unreachable, TooLate, Refused, Broken: see the top of this
        file.
        """
        if not self._introduced:
            await self.introduce(self.reads(timeout))
        return await self.begin(method, request, timeout, metadata).answer()

    def begin(
        self, method: str, request: bytes, timeout: float | None, metadata: Metadata = ()
    ) -> PendingCall:
        """Send a call without waiting for its answer.  Only for a delegate without ``trouble``."""
        known = self._unary.get(method)
        if known is None:
            known = self._unary[method] = self._channel.unary_unary(method, None, None)
        return PendingCall(self, known(request, timeout=timeout, metadata=(*_HOPPED, *metadata)), timeout)

    async def stream(
        self, method: str, request: bytes, timeout: float | None, metadata: Metadata = ()
    ) -> PendingStream:
        """Begin a streaming call; errors as for ``call``.  ``answers`` raises the errors of the stream."""
        if not self._introduced:
            await self.introduce(self.reads(timeout))
        return self.open(method, request, timeout, metadata)

    def open(
        self, method: str, request: bytes, timeout: float | None, metadata: Metadata = ()
    ) -> PendingStream:
        """Begin a streaming call, as ``begin`` does."""
        known = self._streams.get(method)
        if known is None:
            known = self._streams[method] = self._channel.unary_stream(method, None, None)
        return PendingStream(self, known(request, timeout=timeout, metadata=(*_HOPPED, *metadata)), timeout)

    async def introduce(self, timeout: float) -> None:
        """Ask the delegate for its identity, before the first call.

        Refused: the delegate is a xenpod-cri.  Calls would come back to us, or go to the zones of another
        xenpod-cri.
        """
        asked = self.begin(RUNTIME + "Version", b"", timeout)
        try:
            version = cri.VersionResponse.FromString(await asked.answer())
        except DecodeError:
            raise Broken(_ASK, self.endpoint, "its Version is not CRI's") from None
        if version.runtime_name == OURSELVES:
            cause = "it is a xenpod-cri, and a delegate must be another runtime"
            raise Refused(_ASK, self.endpoint, cause, "set delegate.endpoint to that runtime's own socket")
        self._introduced = True
        self.introductions += 1

    def judge(self, error: grpc.aio.AioRpcError, timeout: float | None) -> Exception:
        """The exception for a failed call: the delegate's own status, or a Fault of this side."""
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and details == _OUR_DEADLINE:
            kind = TooLate if timeout is None or timeout >= self.timeout else CallerLeft
            return kind(_ASK, self.endpoint, f"no answer within {timeout or 0:.3g} s")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            return TooLarge(_ASK, self.endpoint, f"its answer is larger than {MESSAGE_LIMIT_BYTES >> 20} MiB")
        if code is grpc.StatusCode.UNAVAILABLE and not self._connected():
            self._introduced = False
            self.lost(details)
            return Unreachable(_ASK, self.endpoint, details, "is that runtime running?")
        return error

    def _connected(self) -> bool:
        return self._channel.get_state() is grpc.ChannelConnectivity.READY


class PendingCall:
    """A call under way."""

    def __init__(self, delegate: Delegate, call: _Call, timeout: float | None) -> None:
        self._delegate = delegate
        self._call = call
        self._timeout = timeout

    async def answer(self) -> bytes:
        """The answer.  Cancelling this coroutine cancels the call."""
        try:
            with step("delegate.call"):
                return await self._call
        except grpc.aio.AioRpcError as error:
            raise self._delegate.judge(error, self._timeout) from None

    def cancel(self) -> None:
        """Cancel the call, if its answer is no longer needed."""
        self._call.cancel()


class PendingStream:
    """A streaming call under way."""

    def __init__(self, delegate: Delegate, call: _Stream, timeout: float | None) -> None:
        self._delegate = delegate
        self._call = call
        self._timeout = timeout

    async def answers(self) -> AsyncGenerator[bytes, None]:
        """The answers in order.  Close this generator if you stop before its end."""
        try:
            async for answer in self._call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self._delegate.judge(error, self._timeout) from None
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """Cancel the call, if its answers are no longer needed."""
        self._call.cancel()


def remaining(context: grpc.aio.ServicerContext[Any, Any]) -> float | None:
    """Seconds until the caller's deadline; None: no deadline."""
    left: float | None = context.time_remaining()
    return left


def passed_on(context: grpc.aio.ServicerContext[Any, Any]) -> Metadata:
    """The caller's metadata to pass on, for example a trace id.  Refused: the call was passed on before."""
    kept = []
    for key, value in context.invocation_metadata() or ():
        if key == HOP:
            cause = "it was passed on by a xenpod-cri already"
            raise Refused("pass on", "a call", cause, "delegate.endpoint must lead to another runtime")
        if key != "user-agent" and not key.startswith(("grpc-", ":")):
            kept.append((key, value))
    return kept


def error_text(error: Exception) -> str:
    """The text of an error of a call."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details() or ''}"
    return str(error) if isinstance(error, Fault) else repr(error)
