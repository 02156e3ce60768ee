"""The delegate's last answers about its pods or containers, shown while the delegate does not answer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message

from cri.delegate.kinds import ListKind, response_type
from cri.delegate.link import Delegate
from daemonkit.faults import Unreachable


class CachedList:
    """The delegate's last whole list, with later creations, changes and removals.

    The later changes come from the delegate's answers to calls through us.
    """

    def __init__(self, kind: ListKind, delegate: Delegate, keep: float) -> None:
        self.kind = kind
        self.heard_at = 0.0
        """Time of the request of the last whole list (time.monotonic); 0: never."""
        self._delegate = delegate
        self._keep = keep
        self._bytes = b""
        self._listed: dict[str, Any] = {}
        self._made: dict[str, tuple[float, Any]] = {}
        self._gone: dict[str, float] = {}

    def heard(self, whole: bytes, items: dict[str, Any], asked_at: float) -> None:
        """Take over a whole list.  The list includes every change from before the request."""
        if asked_at < self.heard_at:
            return
        self.heard_at = asked_at
        self._bytes, self._listed = whole, items
        if self._made or self._gone:
            self._made = {key: one for key, one in self._made.items() if one[0] >= asked_at}
            self._gone = {key: when for key, when in self._gone.items() if when >= asked_at}

    def made(self, item_id: str, item: Message) -> None:
        """Note an answer of the delegate: this item exists now."""
        self._made[item_id] = (time.monotonic(), item)

    def became(self, item_id: str, state: int) -> None:
        """Note an answer of the delegate: this item changed its state."""
        _, item = self._made.get(item_id, (0.0, self._listed.get(item_id)))
        if item is None or item_id in self._gone:
            return
        changed = type(item)()
        changed.CopyFrom(item)
        changed.state = state
        self.made(item_id, changed)

    def became_with(self, pod_id: str, state: int) -> None:
        """Note that all containers of a pod are in another state now."""
        for key in self._within(pod_id):
            self.became(key, state)

    def gone(self, item_id: str) -> None:
        """Note an answer of the delegate: this item no longer exists."""
        self._made.pop(item_id, None)
        self._gone[item_id] = time.monotonic()

    def gone_with(self, pod_id: str) -> None:
        """Note that a pod and all its containers no longer exist."""
        for key in self._within(pod_id):
            self.gone(key)

    def _within(self, pod_id: str) -> list[str]:
        items = (*self._listed.items(), *((key, item) for key, (_, item) in self._made.items()))
        return [key for key, item in items if self.kind.pod(item) == pod_id]

    def items(self) -> dict[str, Any]:
        """All items by id, whatever their age."""
        made = ((key, item) for key, (_, item) in self._made.items())
        return {key: item for key, item in (*self._listed.items(), *made) if key not in self._gone}

    def states(self) -> dict[str, tuple[int, str]]:
        """By id, the state and the id of the pod (of a pod: its own)."""
        return {key: (item.state, self.kind.pod(item) or key) for key, item in self.items().items()}

    def knows(self, whole_id: str) -> bool:
        """Whether the delegate has named this id."""
        return whole_id in self._listed or whole_id in self._made

    def begins(self, prefix: str) -> bool:
        """Whether an id of the delegate begins with ``prefix``."""
        return any(key.startswith(prefix) for key in (*self._listed, *self._made))

    def recall(self, asked: Any) -> bytes:
        """The last known list, as an encoded answer; ``asked`` is the request's filter.

        Unreachable, with the delegate's name: no list is known, or the last list is too old.
        """
        found = self.selected(asked)
        if not asked.ByteSize() and not self._made and not self._gone:
            return self._bytes
        return encoded_items(self.kind.method, self.kind.field, found)

    def selected(self, asked: Any) -> list[Any]:
        """The items selected by a filter; Unreachable as for ``recall``.

        A delegate that has never answered has no items.
        """
        if not self.heard_at:
            if self._delegate.ever_answered:
                raise self._unknown("what it runs is not known")
            return []
        age = time.monotonic() - self.heard_at
        if age > self._keep:
            raise self._unknown(f"what it runs was last known {age:.0f} s ago")
        stale = self._gone.keys() | self._made.keys()
        listed = (item for key, item in self._listed.items() if key not in stale)
        made = (item for _, item in self._made.values())
        return [item for item in (*listed, *made) if self.kind.selects(item, asked)]

    def _unknown(self, cause: str) -> Unreachable:
        subject, trouble = self._delegate.endpoint, self._delegate.trouble
        trouble = trouble or self._delegate.too_large.get(self.kind.method, "")
        hint = "start that runtime, or take [delegate] out of cri.toml"
        return Unreachable(self.kind.method, subject, f"{trouble}; {cause}", hint)


def encoded_items(method: str, field: str, items: Iterable[Any]) -> bytes:
    """An encoded answer with these items."""
    return response_type(method)(**{field: items}).SerializeToString()
