"""The part of each pod in the streaming server: slots, memory, and time of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from cri.streaming.transport.quota import POD_LIMIT_BYTES, PodQuota, StreamMemory
from daemonkit.loop.fair_scheduler import FairScheduler, Share
from daemonkit.shares import Shares


@dataclass(eq=False)
class PodStreams:
    """The streams of one pod, for as long as it has a connection."""

    id: str
    share: Share
    quota: PodQuota
    ended: asyncio.Event
    """Set once the pod's zone has ended."""


class Pods:
    """The pods with streams; a pod is forgotten after its last connection."""

    def __init__(self, scheduler: FairScheduler) -> None:
        self._scheduler = scheduler
        self._memory = StreamMemory()
        self._pods: WeakValueDictionary[str, PodStreams] = WeakValueDictionary()

    def part(self, pod: str, namespace: str) -> PodStreams:
        """The part of a pod of a namespace."""
        found = self._pods.get(pod)
        if found is None:
            # No unused time at the start: otherwise a client with many new connections would overtake others.
            found = self._pods[pod] = PodStreams(
                pod,
                self._scheduler.share(carried=0.0),
                PodQuota(POD_LIMIT_BYTES, self._memory, namespace),
                asyncio.Event(),
            )
        return found

    def end(self, pod: str) -> None:
        """Let the streams of a pod end soon: its zone has ended."""
        if (found := self._pods.get(pod)) is not None:
            found.ended.set()


class Slots:
    """Slots of a pool: a pod has its own limit, and a namespace its share (``daemonkit.shares``).

    A pod gets no more than the rest of its namespace's share: each other pod of the namespace finds free
    slots.
    """

    def __init__(self, total: int, of_pod: int, name: str, keys: tuple[str, str]) -> None:
        """``name``: of the slots' contents, plural; ``keys``: names of the limits, of all pods and of one."""
        self._total = total
        self._of_pod = of_pod
        self._name = name
        self._keys = keys
        self._shares = Shares(total)
        self._used: Counter[str] = Counter()

    @property
    def full(self) -> bool:
        """Whether no pod gets a slot."""
        return not self._shares.free

    def trouble(self, pod: str, namespace: str) -> str:
        """The reason why a pod gets no slot now; "": a slot is free."""
        if self.full:
            return f"all {self._total} {self._name} that {self._keys[0]} allows are in use"
        if self._used[pod] >= self._of_pod:
            return f"pod {pod} has {self._used[pod]} {self._name}, as many as {self._keys[1]} allows"
        held = self._shares.held(namespace)
        left = self._shares.free - held
        if left <= 0:
            share = f"its share of the {self._total} that {self._keys[0]} allows"
            return f"namespace {namespace} has {held} {self._name}, {share}"
        if self._used[pod] >= left:  # else some pods of the namespace would use up its share
            return f"pod {pod} has {self._used[pod]} {self._name}, as many as are left to its namespace"
        return ""

    def take(self, pod: str, namespace: str) -> Callable[[], None]:
        """Take a slot, if no trouble; returns a function that gives the slot back, once."""
        self._shares.take(namespace)
        self._used[pod] += 1

        def give() -> None:
            self._shares.give(namespace)
            self._used[pod] -= 1
            if not self._used[pod]:
                del self._used[pod]

        return give
