"""Names taken by sandboxes and containers: one holder each, so that a retried request cannot make a twin."""

from __future__ import annotations

from daemonkit.faults import Exists
from xenpod_proto.cri.v1 import runtime_pb2 as cri


class Names:
    """Reserved names and their holders' ids."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._holders: dict[str, str] = {}

    def reserve(self, name: str, holder: str) -> None:
        """Take ``name``; Exists, with the first holder's id, when it is taken."""
        first = self._holders.setdefault(name, holder)
        if first != holder:
            raise Exists(
                f"reserve {self._kind} name", name, f"it is reserved for {first}", "remove that one first"
            )

    def holder(self, name: str) -> str | None:
        """Who has it."""
        return self._holders.get(name)

    def release(self, name: str, holder: str) -> None:
        """Give ``name`` back; nothing happens when another holds it."""
        if self._holders.get(name) == holder:
            del self._holders[name]


def sandbox_name(metadata: cri.PodSandboxMetadata) -> str:
    """The name that a sandbox reserves."""
    return "_".join((metadata.name, metadata.namespace, metadata.uid, str(metadata.attempt)))


def container_name(metadata: cri.ContainerMetadata, sandbox_id: str) -> str:
    """The name that a container reserves; names are unique within a sandbox."""
    return "_".join((metadata.name, sandbox_id, str(metadata.attempt)))
