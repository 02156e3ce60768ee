"""Room for pods and containers in the answers that list all of them.

A gRPC message has at most MESSAGE_LIMIT_BYTES, and the kubelet's client accepts no more. Most text in the
lists is annotations, which a pod's author writes: up to 256 KiB each. Statistics of pods repeat the text of
pods and of containers. One sum therefore counts both, and an entry beyond the limit is refused.

An entry up to ORDINARY_BYTES only needs room in the sum. The rest of a longer entry counts as large. A node
has LARGE_BYTES for large text, and a namespace SHARE_BYTES: a namespace that has used its share does not
affect other namespaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cri.state.container import Container
from cri.state.records import Records
from cri.state.sandbox import Sandbox
from daemonkit.faults import Exhausted
from daemonkit.rpc.channels import MESSAGE_LIMIT_BYTES
from xenpod_proto.cri.v1 import runtime_pb2 as cri

FIGURES_BYTES = 1024
"""Bytes of an entry's statistics and of all other fields without text."""
TOTAL_BYTES = MESSAGE_LIMIT_BYTES - 256 * 1024
ORDINARY_BYTES = 8 * 1024
LARGE_BYTES = 4 << 20
SHARE_BYTES = 1 << 20

_HINT = "shorten its annotations and labels, or remove other pods"


@dataclass(frozen=True, slots=True)
class ListEntry:
    """An entry of the lists: its tenant, and its size in bytes."""

    namespace: str
    size_bytes: int

    @property
    def large_bytes(self) -> int:
        return max(0, self.size_bytes - ORDINARY_BYTES)


def pod_entry(config: cri.PodSandboxConfig) -> ListEntry:
    item = cri.PodSandbox(metadata=config.metadata, labels=config.labels, annotations=config.annotations)
    return entry_of(config.metadata.namespace, item)


def container_entry(namespace: str, config: cri.ContainerConfig) -> ListEntry:
    item = cri.Container(
        metadata=config.metadata, image=config.image, labels=config.labels, annotations=config.annotations
    )
    return entry_of(namespace, item)


def entry_of(namespace: str, item: cri.PodSandbox | cri.Container) -> ListEntry:
    return ListEntry(namespace, item.ByteSize() + FIGURES_BYTES)


def check_entry(operation: str, subject: str, new: ListEntry, present: Iterable[ListEntry]) -> None:
    """Exhausted, with the numbers: with one more entry the lists could outgrow their message."""
    total = large = own = 0
    for entry in present:
        total += entry.size_bytes
        large += entry.large_bytes
        own += entry.large_bytes if entry.namespace == new.namespace else 0
    beyond = f"{new.large_bytes} bytes of text beyond {ORDINARY_BYTES} in lists"
    if new.large_bytes and own + new.large_bytes > SHARE_BYTES:
        cause = f"{beyond}: its namespace has {own} of at most {SHARE_BYTES} on this node"
    elif new.large_bytes and large + new.large_bytes > LARGE_BYTES:
        cause = f"{beyond}: this node has {large} of at most {LARGE_BYTES}"
    elif total + new.size_bytes > TOTAL_BYTES:
        cause = f"{new.size_bytes} bytes in lists: this node has {total} of at most {TOTAL_BYTES}"
    else:
        return
    raise Exhausted(operation, subject, cause, _HINT)


@dataclass(slots=True)
class ListCapacity:
    """The entries of this node; ``others``: the entries of another runtime behind us."""

    sandboxes: Records[Sandbox]
    containers: Records[Container]
    others: Callable[[], Iterable[ListEntry]] = tuple
    _known: dict[str, ListEntry] = field(default_factory=dict)
    _making: list[ListEntry] = field(default_factory=list)

    def check_pod(self, operation: str, config: cri.PodSandboxConfig) -> None:
        """Exhausted: the lists have no room for one more pod.  Do not await before its record exists."""
        check_entry(operation, config.metadata.name, pod_entry(config), self._present())

    def check_container(self, operation: str, namespace: str, config: cri.ContainerConfig) -> None:
        """Exhausted: the lists have no room for one more container; as ``check_pod``."""
        check_entry(operation, config.metadata.name, container_entry(namespace, config), self._present())

    @contextmanager
    def making(self, operation: str, subject: str, entry: ListEntry) -> Iterator[None]:
        """Count an entry of another runtime while that runtime makes it; Exhausted, as ``check_pod``."""
        check_entry(operation, subject, entry, self._present())
        self._making.append(entry)
        try:
            yield
        finally:
            self._making.remove(entry)

    def _present(self) -> list[ListEntry]:
        sandboxes, containers = self.sandboxes.all(), self.containers.all()
        namespaces = {one.id: one.config.metadata.namespace for one in sandboxes}
        known = self._known
        found = {one.id: known.get(one.id) or pod_entry(one.config) for one in sandboxes}
        for one in containers:
            namespace = namespaces.get(one.sandbox_id, "")
            found[one.id] = known.get(one.id) or container_entry(namespace, one.config)
        self._known = found
        return [*found.values(), *self._making, *self.others()]
