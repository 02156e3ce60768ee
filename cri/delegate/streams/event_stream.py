"""GetContainerEvents of both runtimes, joined into one stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc.aio
from google.protobuf.message import DecodeError, Message

from cri.delegate.kinds import parsed
from cri.delegate.link import RUNTIME, Delegate, error_text, passed_on
from cri.delegate.lists import lacks
from cri.delegate.owners import Owners
from cri.delegate.streams.missed import MissedEvents
from cri.delegate.untrusted import read_message
from daemonkit.backoff import Backoff
from daemonkit.faults import Fault, Unsupported
from daemonkit.logs import fields
from daemonkit.tasks import complete
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_METHOD = "GetContainerEvents"
_WAITING_EVENTS = 64
"""Number of the delegate's events waiting for a subscriber before its stream is no longer read."""
_LONGEST_SECONDS = 2.0
_VERDICT_SECONDS = 1.0
"""Seconds within which a delegate without events returns its error.  Our events wait for this time."""


class MergedEvents:
    """Answers GetContainerEvents with the events of both runtimes.

    When the delegate's stream breaks off, this class opens the stream again, and makes the missed events.  If
    the delegate has no events (containerd before 1.7), the call fails with UNIMPLEMENTED, since the kubelet
    would rely on events for all pods.  The kubelet then lists, as it would with only the delegate.
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
        """The events of both runtimes, each on its arrival."""
        request = parsed(_METHOD, cri.GetEventsRequest, raw)
        metadata = passed_on(context)
        inbox: asyncio.Queue[bytes] = asyncio.Queue(_WAITING_EVENTS)
        follower = asyncio.ensure_future(self._follow(raw, metadata, inbox))
        theirs: asyncio.Future[Any] = asyncio.ensure_future(inbox.get())
        ours: asyncio.Future[Any] | None = None
        try:
            await asyncio.wait(
                (theirs, follower), timeout=_VERDICT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if follower.done():
                follower.result()
            our_events = aiter(self._ours(request, context))
            ours = asyncio.ensure_future(_next(our_events))
            while True:
                await asyncio.wait((ours, theirs, follower), return_when=asyncio.FIRST_COMPLETED)
                if ours.done():
                    yield ours.result()
                    ours = asyncio.ensure_future(_next(our_events))
                if theirs.done():
                    yield theirs.result()
                    theirs = asyncio.ensure_future(inbox.get())
                elif follower.done():
                    follower.result()
        finally:
            waiting = [one for one in (ours, theirs, follower) if one is not None]
            for one in waiting:
                one.cancel()
            await complete(asyncio.gather(*waiting, return_exceptions=True))

    async def _follow(self, raw: bytes, metadata: Any, inbox: asyncio.Queue[bytes]) -> None:
        """Put the delegate's events into ``inbox`` until cancelled; Unsupported: no events."""
        backoff, before = Backoff(longest=_LONGEST_SECONDS), None
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
                    cause = "it has no events, so this node has none"
                    raise Unsupported(_METHOD, self._delegate.endpoint, cause) from None
                log.info("no events of the delegate: %s", error_text(error))
            if before is None:
                before = self._missed.known()
            await asyncio.sleep(backoff.delay())

    def _checked(self, untrusted: bytes) -> bytes | None:
        """The event to pass on; None: malformed, or about a pod or container of ours."""
        try:
            readable, event = read_message(cri.ContainerEventResponse, untrusted)
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
