"""The records of pods and containers together, with the names and locks that belong to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from cri.state.container import Container
from cri.state.names import Locks, Names
from cri.state.records import Records
from cri.state.sandbox import Sandbox
from daemonkit.faults import Fault


@dataclass(frozen=True, slots=True)
class PodRecords:
    """Records of pods and containers, their reserved names, and a lock for each id."""

    sandboxes: Records[Sandbox]
    containers: Records[Container]
    sandbox_names: Names = field(default_factory=lambda: Names("pod sandbox"))
    container_names: Names = field(default_factory=lambda: Names("container"))
    locks: Locks = field(default_factory=Locks)

    def containers_of(self, sandbox_id: str) -> list[Container]:
        """All containers of a sandbox, hidden ones too."""
        return [container for container in self.containers.all() if container.sandbox_id == sandbox_id]

    def namespace_of(self, container: Container) -> str:
        """The Kubernetes namespace of a container's pod."""
        return self.sandboxes.get(container.sandbox_id).config.metadata.namespace

    def pod_of(self, some_id: str) -> str:
        """``namespace/name`` of the pod with this pod or container id; "" if unknown."""
        try:
            pod = self.sandboxes.find_or_none(some_id)
            meta = (pod or self.sandboxes.get(self.containers.find(some_id).sandbox_id)).config.metadata
        except Fault:
            return ""
        return f"{meta.namespace}/{meta.name}"
