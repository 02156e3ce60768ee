"""The standard streams of a process in a zone: an Exec or Attach call of protect.v1."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeAlias, TypeVar

import grpc.aio

from daemonkit.faults import Broken
from daemonkit.loop.turns import charge
from daemonkit.rpc.interceptors import fault_of
from xenpod_proto.protect.v1 import protect_pb2 as pb

Message = TypeVar("Message", pb.ExecInput, pb.AttachInput)

# grpc.aio's call type, for Exec and for Attach
_Call: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"

MESSAGE = 0.0002
"""Seconds of CPU time that a message costs in gRPC's threads and in protectd, however small it is."""
START = 0.002
"""Seconds that the beginning of a call costs there, and in the zone's agent."""

_GONE = (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError)


class ProcessStreams(Generic[Message]):
    """The standard streams of a process: several tasks may write input, one reads output."""

    def __init__(self, call: _Call, make: type[Message], operation: str, subject: str) -> None:
        self._call = call
        self._make: type[Message] = make
        self._operation = operation
        self._subject = subject
        self._turn = asyncio.Lock()

    async def stdin(self, data: bytes) -> None:
        """Write input, back-pressured; nothing once the process has ended, which ``outputs`` reports."""
        await self._write(self._make(stdin=data))

    async def stdin_eof(self) -> None:
        """End its input."""
        await self._write(self._make(stdin_eof=True))

    async def resize(self, rows: int, columns: int) -> None:
        """Set its terminal's size, in characters."""
        await self._write(self._make(resize=pb.TerminalSize(rows=rows, columns=columns)))

    async def outputs(self) -> AsyncIterator[pb.ExecOutput]:
        """Yield the output, and the exit as the last item; raises a fault if there is no exit."""
        exited = False
        try:
            async for output in self._call:
                exited = output.HasField("exit")
                charge(MESSAGE)
                yield output
        except grpc.aio.AioRpcError as error:
            # grpc forgets a call's status when a write meets its end; the exit has come before.
            if not exited:
                raise fault_of(error, self._operation, self._subject) from None
        if not exited:
            raise Broken(self._operation, self._subject, "protectd ended the stream without an exit code")

    async def _write(self, message: Message) -> None:
        async with self._turn:
            # The call has ended; whoever reads the output learns why.
            with contextlib.suppress(*_GONE):
                charge(MESSAGE)
                await self._call.write(message)


@contextlib.asynccontextmanager
async def opened(
    call: _Call, first: Message, operation: str, subject: str
) -> AsyncIterator[ProcessStreams[Message]]:
    """Open the streams for the time of the block; leaving it ends the call."""
    try:
        charge(START)
        with contextlib.suppress(*_GONE):
            await call.write(first)
        yield ProcessStreams(call, type(first), operation, subject)
    finally:
        call.cancel()
