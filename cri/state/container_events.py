"""Events of sandboxes and containers, for the kubelet's event stream (KEP-3386).

Events follow from changes of records.  Each end is therefore reported once, whether the news comes from a
call, from protectd's stream, or after an absence of this daemon.  Events without a subscriber are kept for
the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from cri.state.container import Container, ContainerPhase
from cri.state.records import Records
from cri.state.sandbox import Sandbox, SandboxPhase
from daemonkit.faults import Exhausted
from daemonkit.logs import fields
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

QUEUE_EVENTS = 1024
"""Maximum of a subscriber's unread events, and of events kept without a subscriber."""
SUBSCRIBER_LIMIT = 64

Kind: TypeAlias = cri.ContainerEventType.ValueType
_CREATED, _STARTED, _STOPPED, _DELETED = (
    cri.CONTAINER_CREATED_EVENT,
    cri.CONTAINER_STARTED_EVENT,
    cri.CONTAINER_STOPPED_EVENT,
    cri.CONTAINER_DELETED_EVENT,
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event:
    """An event, with the records after the event; ``id`` is a container's, or a pod's."""

    kind: Kind
    id: str
    when_ns: int
    sandbox: Sandbox | None
    containers: tuple[Container, ...]


def container_kinds(before: Container | None, after: Container | None) -> list[Kind]:
    """The kinds of events for a change of a container's record."""
    if after is None:
        return [] if before is None or before.hidden else [_DELETED]
    if before is None or after.hidden:
        return []
    kinds = [_CREATED] if before.hidden else []
    if after.phase is before.phase:
        return kinds
    ended = after.phase in (ContainerPhase.EXITED, ContainerPhase.REMOVING)
    ran = before.phase is ContainerPhase.RUNNING
    if after.phase is ContainerPhase.RUNNING or (ended and before.live and not ran and after.started_ns):
        kinds.append(_STARTED)
    if before.live and (after.phase is ContainerPhase.EXITED or (ended and ran)):
        kinds.append(_STOPPED)
    return kinds


def sandbox_kinds(before: Sandbox | None, after: Sandbox | None) -> list[Kind]:
    """The events for a change of a pod's record.  A zone that ended by itself has stopped already."""
    if after is None:
        return [] if before is None or before.hidden else [_DELETED]
    if before is None or after.phase is before.phase:
        return []
    match after.phase:
        case SandboxPhase.READY:
            return [_CREATED, _STARTED]
        case SandboxPhase.DEAD:
            return [_STOPPED]
        case SandboxPhase.STOPPED if not before.death_reason:
            return [_STOPPED]
    return []


class Events:
    """Makes events by observing the records of both kinds."""

    def __init__(
        self,
        sandboxes: Records[Sandbox],
        containers: Records[Container],
        now: Callable[[], int],
        limit: int = QUEUE_EVENTS,
    ) -> None:
        self._sandboxes = sandboxes
        self._containers = containers
        self._now = now
        self._feed: Feed[Event] = Feed(limit)
        # Other records may change before a change is stored: an event takes all states at the change.
        sandboxes.prepare(self._sandbox)
        containers.prepare(self._container)

    def subscribe(self) -> AsyncGenerator[Event, None]:
        """Kept events, then new events; Exhausted for a slow subscriber."""
        return self._feed.subscribe()

    def _sandbox(self, before: Sandbox | None, after: Sandbox | None) -> Callable[[], None]:
        known = after or before
        kinds = sandbox_kinds(before, after)
        return self._prepared(kinds, known.id, known, ()) if known else _nothing

    def _container(self, before: Container | None, after: Container | None) -> Callable[[], None]:
        known = after or before
        kinds = container_kinds(before, after)
        if known is None or not kinds:
            return _nothing
        has = self._sandboxes.has(known.sandbox_id)
        sandbox = self._sandboxes.get(known.sandbox_id) if has else None
        return self._prepared(kinds, known.id, sandbox, (after,) if after else ())

    def _prepared(
        self, kinds: Sequence[Kind], subject: str, sandbox: Sandbox | None, own: tuple[Container, ...]
    ) -> Callable[[], None]:
        """Make the events now; the result publishes them."""
        if not kinds:
            return _nothing
        known = {container.id for container in own}
        others = tuple(
            container
            for container in self._containers.visible()
            if sandbox is not None and container.sandbox_id == sandbox.id and container.id not in known
        )
        events = [Event(kind, subject, self._now(), sandbox, (*own, *others)) for kind in kinds]
        return partial(self._publish, events)

    def _publish(self, events: Sequence[Event]) -> None:
        for event in events:
            self._feed.put(event)


def _nothing() -> None:
    """Publish no event."""


class Feed(Generic[T]):
    """Fan-out to subscribers.  A subscriber cannot delay the feed: a slow subscriber is cut off."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._subscribers: set[_Subscriber[T]] = set()
        self._unseen: deque[T] = deque(maxlen=limit)

    def put(self, item: T) -> None:
        if not self._subscribers:
            if len(self._unseen) == self._limit:
                log.debug("an event that nobody listened to is forgotten", extra=fields(limit=self._limit))
            self._unseen.append(item)
        for subscriber in self._subscribers:
            subscriber.offer(item)

    async def subscribe(self) -> AsyncGenerator[T, None]:
        """Yield items, beginning with the kept ones.  Exhausted: too many subscribers, or a slow one."""
        if len(self._subscribers) >= SUBSCRIBER_LIMIT:
            raise Exhausted("subscribe", "", f"there are {SUBSCRIBER_LIMIT} subscribers already")
        subscriber: _Subscriber[T] = _Subscriber(self._limit, self._unseen)
        self._unseen = deque(maxlen=self._limit)
        self._subscribers.add(subscriber)
        try:
            while True:
                yield await subscriber.next()
        finally:
            self._subscribers.discard(subscriber)
            if not self._subscribers:
                self._unseen.extend(subscriber.unread())


class _Subscriber(Generic[T]):
    def __init__(self, limit: int, first: deque[T]) -> None:
        self._limit = limit
        self._queue = deque(first)
        self._overrun = False
        self._changed = asyncio.Event()
        self._changed.set()

    def offer(self, item: T) -> None:
        if self._overrun:
            return
        if len(self._queue) < self._limit:
            self._queue.append(item)
        else:
            self._overrun = True
            self._queue.clear()  # no longer read
        self._changed.set()

    async def next(self) -> T:
        while not self._queue:
            if self._overrun:
                cause = f"the subscriber is more than {self._limit} events behind"
                raise Exhausted("subscribe", "", cause, "subscribe again, and list what there is")
            self._changed.clear()
            await self._changed.wait()
        return self._queue.popleft()

    def unread(self) -> list[T]:
        return list(self._queue)
