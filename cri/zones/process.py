"""The standard streams of a process in a zone: an Exec or Attach call of protect.v1."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeAlias, TypeVar

import grpc.aio

from daemonkit.faults import Broken
from daemonkit.loop.fair_scheduler import charge
from daemonkit.rpc.interceptors import fault_of
from xenpod_proto.protect.v1 import protect_pb2 as pb

Message = TypeVar("Message", pb.ExecInput, pb.AttachInput)

# grpc.aio's call type, for Exec and for Attach
_Call: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"

MESSAGE_SECONDS = 0.0002
"""CPU time in seconds of a message in gRPC's threads and in protectd, for any size."""
START_SECONDS = 0.002
"""CPU time in seconds of the start of a call in gRPC's threads, protectd, and the zone's agent."""

_GONE = (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError)


class ProcessStreams(Generic[Message]):
    """The standard streams of a process: several tasks may write input, one task reads output."""

    def __init__(self, call: _Call, make: type[Message], operation: str, subject: str) -> None:
        self._call = call
        self._make: type[Message] = make
        self._operation = operation
        self._subject = subject
        self._turn = asyncio.Lock()

    async def stdin(self, data: bytes) -> None:
        """Write input, back-pressured; no effect after the end of the process, which ``outputs`` reports."""
        await self._write(self._make(stdin=data))

    async def stdin_eof(self) -> None:
        """End the process's input."""
        await self._write(self._make(stdin_eof=True))

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of the process's terminal, in characters."""
        await self._write(self._make(resize=pb.TerminalSize(rows=rows, columns=columns)))

    async def outputs(self) -> AsyncIterator[pb.ExecOutput]:
        """Yield the output, and the exit (or an attach's detached) as the last item; else raises a fault."""
        ended = False
        try:
            async for output in self._call:
                ended = output.HasField("exit") or output.HasField("detached")
                charge(MESSAGE_SECONDS)
                yield output
        except grpc.aio.AioRpcError as error:
            # grpc forgets a call's status if a write meets the end of the call; the exit has come before.
            if not ended:
                raise fault_of(error, self._operation, self._subject) from None
        if not ended:
            raise Broken(self._operation, self._subject, "protectd ended the stream without an exit code")

    async def _write(self, message: Message) -> None:
        async with self._turn:
            # The call has ended; the reader of the output learns why.
            with contextlib.suppress(*_GONE):
                charge(MESSAGE_SECONDS)
                await self._call.write(message)


@contextlib.asynccontextmanager
async def opened(
    call: _Call, first: Message, operation: str, subject: str
) -> AsyncIterator[ProcessStreams[Message]]:
    """Open the streams for the time of the block; leaving the block ends the call."""
    try:
        charge(START_SECONDS)
        with contextlib.suppress(*_GONE):
            await call.write(first)
        yield ProcessStreams(call, type(first), operation, subject)
    finally:
        call.cancel()
