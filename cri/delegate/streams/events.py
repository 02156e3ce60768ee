"""Events of both runtimes in one stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc.aio
from google.protobuf.message import DecodeError, Message

from cri.delegate.kinds import parsed
from cri.delegate.link import RUNTIME, Delegate, passed_on, said
from cri.delegate.lists import lacks
from cri.delegate.owners import Owners
from cri.delegate.streams.missed import MissedEvents
from cri.delegate.untrusted import read
from daemonkit.backoff import Backoff
from daemonkit.faults import Fault, Unsupported
from daemonkit.logs import fields
from daemonkit.tasks import complete
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_METHOD = "GetContainerEvents"
_WAITING = 64
"""Events of the delegate's that a subscriber has not taken yet; beyond them its stream is not read."""
_LONGEST = 2.0
_VERDICT = 1.0
"""Seconds in which a delegate without events says so.  Ours are kept meanwhile, and none is lost."""


class MergedEvents:
    """GetContainerEvents.

    The delegate's stream is taken up again for as long as the subscriber stays, and what changed meanwhile is
    told.  Without events of the delegate, which containerd before 1.7 does not have, there are none of ours
    either (UNIMPLEMENTED): the kubelet would rely on them for all pods.  It lists then, as it would with that
    delegate alone.
    """

    def __init__(
        self,
        delegate: Delegate,
        ours: Callable[[Any, Any], AsyncIterator[Message]],
        pods: Owners,
        containers: Owners,
        missed: MissedEvents,
    ) -> None:
        self._delegate = delegate
        self._ours = ours
        self._pods = pods
        self._containers = containers
        self._missed = missed

    async def events(self, raw: bytes, context: _Context) -> AsyncGenerator[bytes | Message, None]:
        """Each as soon as it comes."""
        request = parsed(_METHOD, cri.GetEventsRequest, raw)
        metadata = passed_on(context)
        inbox: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)
        other = asyncio.ensure_future(self._follow(raw, metadata, inbox))
        their: asyncio.Future[Any] = asyncio.ensure_future(inbox.get())
        own: asyncio.Future[Any] | None = None
        try:
            await asyncio.wait((their, other), timeout=_VERDICT, return_when=asyncio.FIRST_COMPLETED)
            if other.done():
                other.result()
            ours = aiter(self._ours(request, context))
            own = asyncio.ensure_future(_next(ours))
            while True:
                await asyncio.wait((own, their, other), return_when=asyncio.FIRST_COMPLETED)
                if own.done():
                    yield own.result()
                    own = asyncio.ensure_future(_next(ours))
                if their.done():
                    yield their.result()
                    their = asyncio.ensure_future(inbox.get())
                elif other.done():
                    other.result()
        finally:
            waiting = [one for one in (own, their, other) if one is not None]
            for one in waiting:
                one.cancel()
            await complete(asyncio.gather(*waiting, return_exceptions=True))

    async def _follow(self, raw: bytes, metadata: Any, inbox: asyncio.Queue[bytes]) -> None:
        """Into ``inbox``, for ever; Unsupported when the delegate has no events."""
        backoff, before = Backoff(longest=_LONGEST), None
        while True:
            try:
                call = await self._delegate.stream(RUNTIME + _METHOD, raw, None, metadata)
                async with aclosing(call.answers()) as answers:
                    if before is not None:
                        for missed in await self._missed.since(before):
                            await inbox.put(missed)
                        before = None
                    async for untrusted in answers:
                        backoff.reset()
                        if (event := self._checked(untrusted)) is not None:
                            await inbox.put(event)
            except (grpc.aio.AioRpcError, Fault) as error:
                if lacks(error):
                    cause = "it has no events, so there are none of this node"
                    raise Unsupported(_METHOD, self._delegate.endpoint, cause) from None
                log.info("no events of the delegate: %s", said(error))
            if before is None:
                before = self._missed.known()
            await asyncio.sleep(backoff.delay())

    def _checked(self, untrusted: bytes) -> bytes | None:
        """What to tell; None when it cannot be read, or is about a pod or container of ours."""
        try:
            readable, event = read(cri.ContainerEventResponse, untrusted)
        except DecodeError:
            log.warning("an event of the delegate that is not CRI's: left out")
            return None
        named = (event.container_id, event.pod_sandbox_status.id)
        if any(self._pods.ours(one) or self._containers.ours(one) for one in named):
            log.warning("an event of the delegate about what is ours: left out", extra=fields(ids=named))
            return None
        return readable


async def _next(items: AsyncIterator[Any]) -> Any:
    return await anext(items)
