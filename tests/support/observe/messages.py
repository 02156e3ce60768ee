"""Reads messages of streaming calls."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

import grpc.aio

T = TypeVar("T")


async def next_message(stream: grpc.aio.UnaryStreamCall[Any, T], seconds: float = 60.0) -> T:
    """The next message of a stream; AssertionError when the stream has ended instead."""
    message = await asyncio.wait_for(stream.read(), seconds)
    assert message is not grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
    return cast(T, message)
