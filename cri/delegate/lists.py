"""Lists of both runtimes: both are asked at the same time, and their encoded answers are joined."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from cri.delegate.cached_list import CachedList, encoded_items
from cri.delegate.kinds import ListKind, parsed, request_type
from cri.delegate.link import (
    RUNTIME,
    CallerLeft,
    Delegate,
    PendingCall,
    TooLarge,
    error_text,
    passed_on,
    remaining,
)
from cri.delegate.owners import Owners
from cri.delegate.untrusted import Checked
from cri.state.records import has_id
from daemonkit.faults import Fault, TooLate
from daemonkit.logs import fields
from daemonkit.rpc.channels import MESSAGE_LIMIT_BYTES

log = logging.getLogger(__name__)

REST_SECONDS = 60.0
"""Pause in seconds after figures that came too late; the delegate is not asked before its end."""

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Ours = Callable[[Any, Any], Awaitable[bytes | Message]]
Adapt = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]


async def _as_they_are(items: Sequence[Any]) -> Sequence[Any]:
    return items


class MergedList:
    """A list of RuntimeService with the items of both runtimes."""

    def __init__(
        self, kind: ListKind, delegate: Delegate, ours: _Ours, pods: Owners, containers: Owners,
        last: CachedList | None,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.last = last
        """None for a list of figures: if the delegate does not answer, its figures are left out."""
        self._delegate = delegate
        self._ours = ours
        self._pods = pods
        self._request = request_type(kind.method)
        self._owners = pods if kind.pods else containers
        self.checked = Checked(kind, delegate.endpoint, self._owners.ours)
        self._lacking = -1
        self._rests_until = 0.0
        self.adapt: Adapt = _as_they_are
        """Adapts the delegate's items to ours if necessary (``cri.delegate.metric_labels``)."""

    async def answer(self, raw: bytes, context: _Context) -> bytes:
        """The encoded list of both runtimes' items."""
        request = parsed(self.kind.method, self._request, raw)
        about = getattr(request, "filter", request)
        metadata = passed_on(context)
        begun, pending = time.monotonic(), None
        if not self.only_ours(about) and self.asks():
            timeout = self._delegate.reads(remaining(context), self.kind.patience)
            pending = self._delegate.begin(RUNTIME + self.kind.method, raw, timeout, metadata)
        try:
            own = await self._ours(request, context)
        except BaseException:
            if pending is not None:
                pending.cancel()
            raise
        mine = own if isinstance(own, bytes) else own.SerializeToString()
        if self.only_ours(about):
            return mine
        return mine + await self._theirs(pending, about, begun, MESSAGE_LIMIT_BYTES - len(mine))

    async def refresh(self) -> None:
        """Ask the delegate for the whole list and remember it; the delegate's errors are raised."""
        begun = time.monotonic()
        answer = await self._delegate.call(RUNTIME + self.kind.method, b"", self._delegate.timeout)
        data, items = self.checked.whole(answer)
        if self.last is not None:
            self._delegate.list_fits(self.kind.method)
            self.last.heard(data, items, begun)

    async def begins(self, prefix: str) -> bool:
        """Whether an id of the delegate begins with ``prefix``.

        Requests the whole list: with an ambiguous prefix in a filter, runtimes list nothing.
        """
        assert self.last is not None
        if not self._delegate.trouble:
            try:
                await self.refresh()
            except (grpc.aio.AioRpcError, Fault) as error:
                self.failed(error)
        return self.last.begins(prefix)

    def only_ours(self, about: Any) -> bool:
        """Whether a filter names a pod or container of ours by its whole id."""
        wanted, pod = getattr(about, "id", ""), getattr(about, "pod_sandbox_id", "")
        return bool(wanted and self._owners.ours(wanted) or pod and self._pods.ours(pod))

    def recall(self, about: Any) -> bytes:
        """The delegate's part of the answer while the delegate does not answer itself."""
        return self.last.recall(about) if self.last is not None else b""

    async def _theirs(self, pending: PendingCall | None, about: Any, begun: float, left: int) -> bytes:
        if pending is None:
            return self.recall(about)
        try:
            data, items = self.checked.whole(await pending.answer())
            found = list(items.values())
            if (fitting := await self.adapt(found)) is not found:
                data = encoded_items(self.kind.method, self.kind.field, fitting)
            if len(data) > left:
                cause = f"its list and ours together are larger than {MESSAGE_LIMIT_BYTES >> 20} MiB"
                raise TooLarge(self.kind.method, self._delegate.endpoint, cause)
        except (grpc.aio.AioRpcError, Fault) as error:
            self.failed(error)
            return self.recall(about)
        if self.last is not None and not about.ByteSize():
            self._delegate.list_fits(self.kind.method)
            self.last.heard(data, items, begun)
        chosen = self.named(fitting, about)
        if len(chosen) == len(items):
            return data
        return encoded_items(self.kind.method, self.kind.field, chosen)

    def named(self, items: Sequence[Any], about: Any) -> Sequence[Any]:
        """The items with the ids of a filter, since a delegate may ignore a filter."""
        wanted, pod = getattr(about, "id", ""), getattr(about, "pod_sandbox_id", "")
        if not wanted and not pod:
            return items
        of_pod = self.kind.pod
        return [
            one for one in items if has_id(self.kind.key(one), wanted) and has_id(of_pod(one) or pod, pod)
        ]

    def lacking(self) -> bool:
        """Whether the delegate has said, since its last return, that the list is unknown."""
        return self._lacking == self._delegate.introductions

    def asks(self) -> bool:
        """Whether to ask the delegate: it answers, has the list, and was not too slow just now."""
        rests = time.monotonic() < self._rests_until
        return not self._delegate.trouble and not self.lacking() and not rests

    def failed(self, error: Exception) -> None:
        """Note that the delegate failed to list.  Later callers will not wait for its list."""
        if isinstance(error, CallerLeft):
            return
        if self.last is None and lacks(error):
            self._lacking = self._delegate.introductions
        elif self.last is not None and isinstance(error, TooLarge):
            self._delegate.list_fits(self.kind.method, error_text(error))
        elif self.last is not None:
            self._delegate.lost(error_text(error))
        else:
            if isinstance(error, TooLate):
                self._rests_until = time.monotonic() + REST_SECONDS
            log.warning(
                "the delegate has no figures: %s", error_text(error), extra=fields(list=self.kind.method)
            )


def lacks(error: Exception) -> bool:
    """Whether the delegate lacks the method."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNIMPLEMENTED
