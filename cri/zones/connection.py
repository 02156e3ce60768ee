"""A TCP connection into a zone: a Dial call of protect.v1."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc.aio

from cri.zones.process import MESSAGE_SECONDS, START_SECONDS
from daemonkit.faults import Broken
from daemonkit.loop.fair_scheduler import charge
from daemonkit.rpc.interceptors import fault_of
from xenpod_proto.protect.v1 import protect_pb2 as pb

# grpc.aio's call type
_Call: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"

_CONNECT_SECONDS = 20.0
_GONE = (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError)


class ZoneConnection:
    """A connection for bytes in both directions, with one reading task and one writing task."""

    def __init__(self, call: _Call, subject: str) -> None:
        self._call = call
        self._subject = subject

    async def write(self, data: bytes) -> None:
        """Write, back-pressured; no effect after the end of the connection, which ``chunks`` reports."""
        charge(MESSAGE_SECONDS)
        with contextlib.suppress(*_GONE):
            await self._call.write(pb.DialInput(data=data))

    async def write_eof(self) -> None:
        """End our direction."""
        with contextlib.suppress(*_GONE):
            await self._call.write(pb.DialInput(eof=True))

    async def chunks(self) -> AsyncIterator[bytes]:
        """Read until the other end sends no more."""
        while (output := await self._read()).WhichOneof("output") == "data":
            yield output.data

    async def drained(self) -> None:
        """Wait, after ``chunks``, until the other end has taken everything."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._call.read()

    async def connected(self) -> None:
        """Wait for the connection; Refused, with the agent's words: no listener."""
        if (await self._read()).WhichOneof("output") != "connected":
            raise Broken("dial", self._subject, "protectd answered with something else")

    async def _read(self) -> pb.DialOutput:
        charge(MESSAGE_SECONDS)
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise fault_of(error, "dial", self._subject) from None
        if not isinstance(message, pb.DialOutput):  # grpc.aio.EOF
            raise Broken("dial", self._subject, "protectd ended the stream")
        return message


@contextlib.asynccontextmanager
async def dialled(call: _Call, start: pb.DialStart) -> AsyncIterator[ZoneConnection]:
    """Connect, and close the connection at the end of the block."""
    connection = ZoneConnection(call, f"port {start.port} of {start.zone_id}")
    try:
        charge(START_SECONDS)
        with contextlib.suppress(*_GONE):
            await call.write(pb.DialInput(start=start))
        async with asyncio.timeout(_CONNECT_SECONDS):
            await connection.connected()
        yield connection
    finally:
        call.cancel()
