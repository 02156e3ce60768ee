"""Streaming lists of both runtimes.  A delegate without streaming lists is asked for its plain list."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from cri.delegate.cached_list import encoded_items
from cri.delegate.kinds import parsed, request_type
from cri.delegate.link import RUNTIME, Delegate, PendingStream, passed_on, remaining
from cri.delegate.lists import MergedList, lacks
from daemonkit.faults import Fault
from daemonkit.rpc.server import batches

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Ours = Callable[[Any, Any], AsyncIterator[Message]]
_ERRORS = (grpc.aio.AioRpcError, Fault)


class MergedListStream:
    """A streaming list: our items, then the delegate's.  The delegate is asked at the same time."""

    def __init__(self, merged: MergedList, delegate: Delegate, ours: _Ours) -> None:
        self._list = merged
        self._kind = merged.kind
        self._delegate = delegate
        self._ours = ours
        self._request = request_type(merged.kind.stream)
        self._lacking = -1

    async def answers(self, raw: bytes, context: _Context) -> AsyncGenerator[bytes | Message, None]:
        """The messages of the stream."""
        request = parsed(self._kind.stream, self._request, raw)
        about = getattr(request, "filter", request)
        metadata, begun, pending = passed_on(context), time.monotonic(), None
        asks = not self._list.only_ours(about) and self._list.asks()
        if asks and self._lacking != self._delegate.introductions:
            timeout = self._delegate.reads(remaining(context), self._kind.patience)
            pending = self._delegate.open(RUNTIME + self._kind.stream, raw, timeout, metadata)
        try:
            async for batch in self._ours(request, context):
                yield batch
            if self._list.only_ours(about):
                return
            async with contextlib.aclosing(self._theirs(pending, raw, about, begun, context)) as found:
                async for items in found:
                    for part in batches(self._list.named(await self._list.adapt(items), about)):
                        yield self._encoded(part)
        finally:
            if pending is not None:
                pending.cancel()

    async def _theirs(
        self,
        pending: PendingStream | None,
        raw: bytes,
        about: Any,
        begun: float,
        context: _Context,
    ) -> AsyncGenerator[list[Any], None]:
        """The delegate's items; after a break of the stream, the rest comes from its last word."""
        seen: dict[str, Any] = {}
        try:
            if pending is not None:
                try:
                    async for answer in pending.answers():
                        yield self._list.checked.batch(answer, seen)
                    self._note(about, seen, begun)
                    return
                except grpc.aio.AioRpcError as error:
                    if not lacks(error):
                        raise
                    self._lacking = self._delegate.introductions
            if self._list.asks():
                found = await self._listed(raw, context)
                self._note(about, found, begun)
                yield list(found.values())
                return
        except _ERRORS as error:
            self._list.failed(error)
        if self._list.last is not None:
            yield [one for one in self._list.last.selected(about) if self._kind.key(one) not in seen]

    async def _listed(self, raw: bytes, context: _Context) -> dict[str, Any]:
        """The delegate's plain list, by key.  Both forms of the request have the same fields."""
        timeout = self._delegate.reads(remaining(context), self._kind.patience)
        answer = await self._delegate.call(RUNTIME + self._kind.method, raw, timeout)
        return self._list.checked.whole(answer)[1]

    def _note(self, about: Any, seen: dict[str, Any], begun: float) -> None:
        if self._list.last is not None and not about.ByteSize():
            whole = encoded_items(self._kind.method, self._kind.field, seen.values())
            self._list.last.heard(whole, seen, begun)

    def _encoded(self, items: Iterable[Any]) -> bytes:
        return encoded_items(self._kind.stream, self._kind.stream_field, items)
