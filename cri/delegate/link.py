"""The client of the delegate: bytes out, bytes in.  Its statuses are raised as they came (AioRpcError).

What is not its word is ours: it cannot be reached (Unreachable), it does not answer in time (TooLate), it is
a xenpod-cri itself (Refused), its answer is more than we take (Broken).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from cri.delegate.config import DelegateConfig
from daemonkit.faults import Broken, Fault, Refused, TooLate, Unreachable
from daemonkit.grpc_server import MESSAGE_LIMIT, channel
from daemonkit.interceptors import clip
from xenpod_proto.cri.v1 import runtime_pb2 as cri

RUNTIME = "/runtime.v1.RuntimeService/"
IMAGES = "/runtime.v1.ImageService/"
OURSELVES = "xenpod"
"""``runtime_name`` of each xenpod-cri's Version."""
HOP = "xenpod-delegated"
"""Metadata of each call that we pass on: one that comes back to us, or to another xenpod-cri, is refused."""

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
# grpc.aio's own types leave open what is sent
_Call: TypeAlias = "grpc.aio.UnaryUnaryCall[bytes, bytes]"
_Stream: TypeAlias = "grpc.aio.UnaryStreamCall[bytes, bytes]"

_ASK = "ask the delegate"
_HOPPED: Metadata = ((HOP, "1"),)
# A Go server's trailers may be far larger than gRPC's 8 KiB: a runtime's words reach our caller whole.
_TRAILERS = 1024 * 1024
_OPTIONS = (("grpc.max_metadata_size", _TRAILERS), ("grpc.absolute_max_metadata_size", _TRAILERS))
_NOT_ITS_WORD = "Deadline Exceeded"  # details of a deadline that passed here; gRPC for C writes it so


class CallerLeft(TooLate):
    """The caller's own deadline passed, which says nothing about the delegate."""


class Delegate:
    """The other runtime, by its socket."""

    def __init__(self, config: DelegateConfig) -> None:
        self.endpoint = config.endpoint
        self.timeout = float(config.timeout)
        """Seconds for what only reads."""
        self.trouble = f"{self.endpoint} has not answered yet"
        """Why nobody waits for its lists now; "": it answers.  ``cri.delegate.follow`` clears it."""
        self._lost_at = time.monotonic()
        self._lost: list[Callable[[], None]] = []
        self._channel = channel(config.path, _OPTIONS)
        self._unary: dict[str, Any] = {}
        self._streams: dict[str, Any] = {}
        self.met = False
        """Whether it has ever answered, in an earlier run too: then there may be pods of its (``met.py``)."""
        self._introduced = False
        self.introductions = 0
        """How often it has said who it is: at first, and whenever it was away."""

    async def close(self) -> None:
        """End all calls."""
        await self._channel.close(None)

    def on_lost(self, told: Callable[[], None]) -> None:
        """Call ``told`` whenever it turns out not to answer."""
        self._lost.append(told)

    def lost(self, trouble: str) -> None:
        """It does not answer: nobody waits for its lists until it does."""
        if not self.trouble:
            self._lost_at = time.monotonic()
        self.trouble = clip(trouble if self.endpoint in trouble else f"{self.endpoint}: {trouble}")
        for told in self._lost:
            told()

    def silent(self) -> float:
        """For how many seconds it has not answered; 0: it answers."""
        return time.monotonic() - self._lost_at if self.trouble else 0.0

    def reads(self, remaining: float | None, times: int = 1) -> float:
        """The deadline of a call that only reads, for a caller who has ``remaining`` seconds.

        ``times``: so many times ``timeout`` at most, for what takes a runtime longer.
        """
        most = self.timeout * times
        return most if remaining is None else min(most, remaining)

    async def call(
        self, method: str, request: bytes, timeout: float | None, metadata: Metadata = ()
    ) -> bytes:
        """One call; ``method`` with its service, such as ``RUNTIME + "Version"``.  None: no deadline.

        AioRpcError: its own status.  Unreachable, TooLate, Refused, Broken: see above.
        """
        if not self._introduced:
            await self.introduce(self.reads(timeout))
        return await self.begin(method, request, timeout, metadata).answer()

    def begin(
        self, method: str, request: bytes, timeout: float | None, metadata: Metadata = ()
    ) -> PendingCall:
        """Send a call without waiting for it; for a delegate that is there (``trouble`` is "")."""
        known = self._unary.get(method)
        if known is None:
            known = self._unary[method] = self._channel.unary_unary(method, None, None)
        return PendingCall(self, known(request, timeout=timeout, metadata=(*_HOPPED, *metadata)), timeout)

    async def stream(
        self, method: str, request: bytes, timeout: float | None, metadata: Metadata = ()
    ) -> PendingStream:
        """A streaming call, begun; errors as for ``call``, those of the stream by its ``answers``."""
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
        """Refused when it is a xenpod-cri: a call would come back to us, or go to zones of another one."""
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
        """What to raise: its own status as it is, or what befell the call on this side."""
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and details == _NOT_ITS_WORD:
            kind = TooLate if timeout is None or timeout >= self.timeout else CallerLeft
            return kind(_ASK, self.endpoint, f"no answer within {timeout or 0:.3g} s")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            return Broken(_ASK, self.endpoint, f"its answer is larger than {MESSAGE_LIMIT >> 20} MiB")
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
        """Its answer.  Whoever is cancelled here cancels the call."""
        try:
            return await self._call
        except grpc.aio.AioRpcError as error:
            raise self._delegate.judge(error, self._timeout) from None

    def cancel(self) -> None:
        """Nobody wants the answer."""
        self._call.cancel()


class PendingStream:
    """A streaming call under way."""

    def __init__(self, delegate: Delegate, call: _Stream, timeout: float | None) -> None:
        self._delegate = delegate
        self._call = call
        self._timeout = timeout

    async def answers(self) -> AsyncGenerator[bytes, None]:
        """One after another; whoever stops reading is to close this."""
        try:
            async for answer in self._call:
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self._delegate.judge(error, self._timeout) from None
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """Nobody wants the answers."""
        self._call.cancel()


def remaining(context: grpc.aio.ServicerContext[Any, Any]) -> float | None:
    """Seconds until the caller's deadline; None: it has none."""
    left: float | None = context.time_remaining()
    return left


def passed_on(context: grpc.aio.ServicerContext[Any, Any]) -> Metadata:
    """The caller's own metadata, such as a trace's.  Refused: the call has been passed on before."""
    kept = []
    for key, value in context.invocation_metadata() or ():
        if key == HOP:
            cause = "it was passed on by a xenpod-cri already"
            raise Refused("pass on", "a call", cause, "delegate.endpoint must lead to another runtime")
        if key != "user-agent" and not key.startswith(("grpc-", ":")):
            kept.append((key, value))
    return kept


def said(error: Exception) -> str:
    """An error of a call in words."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details() or ''}"
    return str(error) if isinstance(error, Fault) else repr(error)
