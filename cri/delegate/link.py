"""The client of the delegate, which sends and receives encoded messages.

The delegate's own status is raised as it came (AioRpcError).  What goes wrong on this side is a Fault:
Unreachable, TooLate (no answer in time), Refused (the delegate is itself a xenpod-cri), Broken (the answer
is too large).
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
from daemonkit.rpc.client import MESSAGE_LIMIT, channel
from daemonkit.rpc.interceptors import clip
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

RUNTIME = "/runtime.v1.RuntimeService/"
IMAGES = "/runtime.v1.ImageService/"
OURSELVES = "xenpod"
"""``runtime_name`` of each xenpod-cri's Version."""
HOP = "xenpod-delegated"
"""Metadata that marks each call we pass on: a xenpod-cri refuses a call that already carries it."""

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
# grpc.aio's own types do not say what is sent.
_Call: TypeAlias = "grpc.aio.UnaryUnaryCall[bytes, bytes]"
_Stream: TypeAlias = "grpc.aio.UnaryStreamCall[bytes, bytes]"

_ASK = "ask the delegate"
_HOPPED: Metadata = ((HOP, "1"),)
# A Go server's trailers may be far larger than gRPC's 8 KiB, and an error must reach our caller whole.
_TRAILERS = 1024 * 1024
_OPTIONS = (("grpc.max_metadata_size", _TRAILERS), ("grpc.absolute_max_metadata_size", _TRAILERS))
_OUR_DEADLINE = "Deadline Exceeded"  # what gRPC for C writes when a deadline passes on this side


class CallerLeft(TooLate):
    """The caller's own deadline passed, which says nothing about the delegate."""


class TooLarge(Broken):
    """The delegate answers, and its list does not fit its message: it is not away."""


class Delegate:
    """The other runtime, reached by its socket."""

    def __init__(self, config: DelegateConfig) -> None:
        self.endpoint = config.endpoint
        self.timeout = float(config.timeout)
        """Deadline of a call that only reads, in seconds."""
        self.trouble = f"{self.endpoint} has not answered yet"
        """Why it does not answer; "": it does.  Set by ``lost``, cleared by ``cri.delegate.follow``."""
        self.too_large: dict[str, str] = {}
        """Why lists of a delegate that answers cannot be shown, by method."""
        self._lost_at = time.monotonic()
        self._lost: list[Callable[[], None]] = []
        self._channel = channel(config.path, _OPTIONS)
        self._unary: dict[str, Any] = {}
        self._streams: dict[str, Any] = {}
        self.ever_answered = False
        """Whether it has ever answered, in this run or an earlier one: it may have pods (``stored.py``)."""
        self._introduced = False
        self.introductions = 0
        """How often it was asked who it is: at first, and each time that it came back."""

    async def close(self) -> None:
        """Close the connection, which ends all calls."""
        await self._channel.close(None)

    def on_lost(self, told: Callable[[], None]) -> None:
        """Call ``told`` whenever it turns out not to answer."""
        self._lost.append(told)

    def lost(self, trouble: str) -> None:
        """Note that it does not answer: until it does, nobody waits for its lists."""
        if not self.trouble:
            self._lost_at = time.monotonic()
        self.trouble = clip(trouble if self.endpoint in trouble else f"{self.endpoint}: {trouble}")
        for told in self._lost:
            told()

    def list_fits(self, method: str, trouble: str = "") -> None:
        """Note why a list cannot be shown though the delegate answers; "": it can."""
        if trouble and method not in self.too_large:
            log.warning("the delegate's list is not shown: %s", trouble, extra=fields(list=method))
        if trouble:
            self.too_large[method] = clip(trouble)
        else:
            self.too_large.pop(method, None)

    def silent(self) -> float:
        """Seconds since it was last known to answer; 0 while it answers."""
        return time.monotonic() - self._lost_at if self.trouble else 0.0

    def reads(self, remaining: float | None, times: int = 1) -> float:
        """The timeout of a call that only reads, for a caller who has ``remaining`` seconds left.

        It is at most ``times`` the configured one: some calls take a runtime longer.
        """
        most = self.timeout * times
        return most if remaining is None else min(most, remaining)

    async def call(
        self, method: str, request: bytes, timeout: float | None, metadata: Metadata = ()
    ) -> bytes:
        """Make one call, such as ``RUNTIME + "Version"``; a ``timeout`` of None is no deadline.

        AioRpcError: its own status.  Unreachable, TooLate, Refused, Broken: see the top of this file.
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
        """Begin a streaming call; errors as for ``call``.  ``answers`` raises those of the stream."""
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
        """Ask the delegate who it is, which must happen before the first call.

        Refused: it is a xenpod-cri, so calls would come back to us, or go to the zones of another one.
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
        """What to raise for a failed call: the delegate's own status, or a Fault of this side."""
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and details == _OUR_DEADLINE:
            kind = TooLate if timeout is None or timeout >= self.timeout else CallerLeft
            return kind(_ASK, self.endpoint, f"no answer within {timeout or 0:.3g} s")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            return TooLarge(_ASK, self.endpoint, f"its answer is larger than {MESSAGE_LIMIT >> 20} MiB")
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
        """The answer.  Cancelling this cancels the call."""
        try:
            with step("delegate.call"):
                return await self._call
        except grpc.aio.AioRpcError as error:
            raise self._delegate.judge(error, self._timeout) from None

    def cancel(self) -> None:
        """Cancel the call: nobody wants the answer."""
        self._call.cancel()


class PendingStream:
    """A streaming call under way."""

    def __init__(self, delegate: Delegate, call: _Stream, timeout: float | None) -> None:
        self._delegate = delegate
        self._call = call
        self._timeout = timeout

    async def answers(self) -> AsyncGenerator[bytes, None]:
        """The answers, one after another.  Close this generator if you stop before its end."""
        try:
            async for answer in self._call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self._delegate.judge(error, self._timeout) from None
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """Cancel the call: nobody wants the answers."""
        self._call.cancel()


def remaining(context: grpc.aio.ServicerContext[Any, Any]) -> float | None:
    """Seconds until the caller's deadline; None: there is no deadline."""
    left: float | None = context.time_remaining()
    return left


def passed_on(context: grpc.aio.ServicerContext[Any, Any]) -> Metadata:
    """The caller's metadata to pass on, such as a trace id.  Refused: the call was passed on before."""
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
