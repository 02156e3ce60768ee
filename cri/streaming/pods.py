"""The part of each pod in the streaming server: slots, memory, and time of the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from cri.streaming.transport.quota import PodQuota
from daemonkit.loop.turns import Share, Turns


@dataclass(eq=False)
class PodStreams:
    """The part of one pod, for as long as it has a connection."""

    id: str
    share: Share
    quota: PodQuota = field(default_factory=PodQuota)


class Pods:
    """The pods with streams; their parts are forgotten when nobody holds them."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._pods: WeakValueDictionary[str, PodStreams] = WeakValueDictionary()

    def part(self, pod: str) -> PodStreams:
        """The part of a pod."""
        found = self._pods.get(pod)
        if found is None:
            # Nothing carried: else a client that connects again and again would go ahead of the others.
            found = self._pods[pod] = PodStreams(pod, self._turns.share(carried=0.0))
        return found


class Slots:
    """Slots of a pool that pods share.

    No pod gets more than its own limit, or more than are left free.  So pods that take all they can leave a
    slot for every other pod: two of them take a third of the slots each, ten an eleventh.
    """

    def __init__(self, total: int, of_pod: int, name: str, keys: tuple[str, str]) -> None:
        """``name``: of what is in a slot, plural; ``keys``: names of the limits, of all pods and of one."""
        self._total = total
        self._of_pod = of_pod
        self._name = name
        self._keys = keys
        self._used: Counter[str] = Counter()
        self._all = 0

    @property
    def full(self) -> bool:
        """Whether no pod gets a slot."""
        return self._all >= self._total

    def trouble(self, pod: str) -> str:
        """The reason why a pod gets no slot now; "": it gets one."""
        used, free = self._used[pod] if pod in self._used else 0, self._total - self._all
        if self.full:
            return f"all {self._total} {self._name} that {self._keys[0]} allows are in use"
        if used >= self._of_pod:
            return f"pod {pod} has {used} {self._name}, as many as {self._keys[1]} allows"
        if used > free:
            left = f"{free} of the {self._total} that {self._keys[0]} allows are free"
            return f"pod {pod} has {used} {self._name}, and {left}: no pod may have more than are left"
        return ""

    def take(self, pod: str) -> Callable[[], None]:
        """Take a slot; returns how to give it back, once."""
        self._used[pod] += 1
        self._all += 1

        def give() -> None:
            self._all -= 1
            self._used[pod] -= 1
            if not self._used[pod]:
                del self._used[pod]

        return give
