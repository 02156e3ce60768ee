"""Owner of a pod or container: ours if our records have its id, else the delegate."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from enum import Enum
from typing import Any, Protocol

from cri.delegate.config import DelegateConfig, HostNetwork, Unnamed
from cri.state.records import Record
from daemonkit.faults import Denied, Invalid
from daemonkit.namespaces import matches
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_WHOLE = 64
"""Length of a whole id: ours, containerd's and CRI-O's.  A shorter id may be a prefix."""

_REMOVED_IDS = 4096
"""Number of our removed ids that are remembered; the kubelet asks for removed ids for some minutes."""


class Owner(Enum):
    """One of the two runtimes."""

    OURS = "xenpod"
    DELEGATE = "delegate"


class OwnRecords(Protocol):
    """Records of our pods or of our containers (``cri.state.records``)."""

    def has(self, record_id: str) -> bool: ...

    def visible(self) -> list[Any]: ...

    def observe(self, observer: Callable[[Any, Any], None]) -> None: ...


class Owners:
    """Finds the owner of a pod, or of a container; each instance serves one kind.

    ``knows``: whether the delegate has named this whole id.  ``begins``: whether an id of the delegate begins
    with this prefix; the delegate is asked, or its last word counts while it does not answer.
    """

    def __init__(
        self,
        kind: str,
        ours: OwnRecords,
        knows: Callable[[str], bool],
        begins: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._kind = kind
        self._ours = ours
        self._knows = knows
        self._begins = begins
        self._removed: OrderedDict[str, None] = OrderedDict()
        ours.observe(self._note)

    def ours(self, whole_id: str) -> bool:
        """Whether a whole id is ours: visible, hidden, or removed not long ago."""
        return self._ours.has(whole_id) or whole_id in self._removed

    async def owner(self, wanted: str) -> Owner:
        """The owner of a whole id, or of an unambiguous prefix.  Invalid: both have ids with this prefix."""
        if not wanted or self.ours(wanted):
            return Owner.OURS  # our side refuses the empty id
        if len(wanted) >= _WHOLE or self._knows(wanted):
            return Owner.DELEGATE
        found: list[Record] = self._ours.visible()
        if not any(record.id.startswith(wanted) for record in found):
            return Owner.DELEGATE
        if await self._begins(wanted):
            cause = "ids of both runtimes begin with it"
            raise Invalid(f"find {self._kind}", wanted, cause, "give more of the id")
        return Owner.OURS

    def _note(self, before: Any, after: Any) -> None:
        """Remember a removed id: later calls for it must neither wait for the delegate nor reach it."""
        if before is None or after is not None:
            return
        self._removed[before.id] = None
        if len(self._removed) > _REMOVED_IDS:
            self._removed.popitem(last=False)


def pod_owner(asked: cri.RunPodSandboxRequest, handlers: Collection[str], config: DelegateConfig) -> Owner:
    """The runtime of a new pod, by its runtime handler and the keys of ``[delegate]``.

    A pod of the same name on the other side is no conflict: each runtime has its own names, and the kubelet
    uses ids.  After a change of ``default``, a pod's next sandbox may be on the other side during the removal
    of the last sandbox.
    """
    name = asked.runtime_handler
    ours = name in handlers if name else config.default is Unnamed.XENPOD
    if not ours:
        return Owner.DELEGATE
    if asked.config.linux.security_context.namespace_options.network != cri.NODE:
        return Owner.OURS
    match config.host_network:
        case HostNetwork.DELEGATE:
            return Owner.DELEGATE
        case HostNetwork.CLASSLESS if not name:
            return Owner.DELEGATE
    return Owner.OURS  # our side refuses the host's network


def check_namespace(asked: cri.RunPodSandboxRequest, config: DelegateConfig) -> None:
    """Denied: ``[delegate] namespaces`` does not let pods of this namespace start in the delegate.

    Only a new sandbox is checked.  Running pods of the delegate go on, and restart their containers.
    """
    metadata = asked.config.metadata
    if matches(config.namespaces, metadata.namespace):
        return
    cause = (
        f"it is for {config.endpoint}, in the host's kernel, and [delegate] namespaces in cri.toml does not"
        f" name its namespace {metadata.namespace!r:.80}"
    )
    hint = "give it a RuntimeClass of zones, without hostNetwork, or have the operator add the namespace"
    raise Denied("run pod sandbox", metadata.name, cause, hint)


Ensure = Callable[[Owner, cri.CreateContainerRequest], Awaitable[None]]
"""Awaited before a container is created: brings a missing image from the other side to the owner's side."""
