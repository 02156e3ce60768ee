"""The daemon's state and ports, passed to every verb."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cri.config import CriConfig
from cri.oci.values import RootImage
from cri.state.attachment import Attachment, BandwidthLimits, Chain
from cri.state.changes import StateChanges
from cri.state.container import Container
from cri.state.events import Events
from cri.state.list_capacity import ListCapacity
from cri.state.names import Locks, Names
from cri.state.records import Records
from cri.state.sandbox import Sandbox
from cri.zones.client import Zones
from cri.zones.follow import Follower, HostInfo
from daemonkit.faults import Fault
from daemonkit.host.paths import HostPaths
from daemonkit.logs import fields
from daemonkit.shares import Shares
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

log = logging.getLogger(__name__)

MEMORY_BUDGET = 128 << 20
"""Memory budget in bytes for the data under way of all tenants together (ADR 63)."""
EXEC_CALLS = 1024
"""Most calls of ExecSync under way; the server has room for four times as many calls of all kinds."""


class Images(Protocol):
    """The image store, as pods and containers need it."""

    def resolve(self, reference: str) -> RootImage:
        """Find an image by id, tag or digest; Missing: no image has this name."""
        ...

    async def mend(self, references: Sequence[str]) -> None:
        """Rebuild damaged images; intact images are ignored.

        Refused if only a pull can mend an image.
        """
        ...

    def hold(self, image_id: str, container_id: str) -> None:
        """Keep an image on the disk until ``release``, even after its removal.

        A container may hold several; the zones of pods hold their kernels (``cri.sandbox.kernel``).
        """
        ...

    def release(self, container_id: str) -> None:
        """Give up all images of the container."""
        ...

    def collect(self) -> None:
        """Delete removed images without a hold.  The starting daemon makes all its holds first."""
        ...

    async def kernel(self, image_id: str) -> pb.ZoneKernel:
        """The files of a held kernel image; they last as long as the hold.

        Refused, Exhausted: no zone can boot from the image.
        """
        ...

    def pulls(self) -> list[dict[str, object]]:
        """The pulls under way and their progress, as JSON."""
        ...


class PodNetwork(Protocol):
    """The network of pods."""

    def check(self) -> Chain:
        """The configuration in force; Refused, with the reason: attaching a pod is impossible now."""
        ...

    def plan(self, sandbox_id: str, config: cri.PodSandboxConfig, most: BandwidthLimits) -> Attachment:
        """Plan a pod's attachment, without doing anything yet.

        Refused: an attachment is impossible.  Denied: the pod asks for more than ``most``.
        """
        ...

    async def attach(self, attachment: Attachment, made: Callable[[], None] = lambda: None) -> Attachment:
        """Attach a pod; returns the attachment with its result.  A failure leaves work for ``detach``.

        ``made`` is called once the namespace exists.
        """
        ...

    async def detach(self, attachment: Attachment) -> None:
        """Detach a pod; parts already gone succeed."""
        ...


@dataclass(slots=True)
class KubeletConfig:
    """The kubelet's configuration (UpdateRuntimeConfig).  The kubelet sends it again after a restart."""

    pod_cidr: str = ""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The daemon's state and ports, assembled by ``cri.daemon``."""

    config: CriConfig
    sandboxes: Records[Sandbox]
    containers: Records[Container]
    sandbox_names: Names
    container_names: Names
    network: PodNetwork
    zones: Zones
    follower: Follower
    changes: StateChanges
    images: Images
    events: Events
    host: HostInfo
    paths: HostPaths
    capacity: ListCapacity
    kubelet: KubeletConfig = field(default_factory=KubeletConfig)
    locks: Locks = field(default_factory=Locks)
    shares: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By sandbox, the weight and cap last sent to protectd (``cri.container.shares``)."""
    memory: Shares = field(default_factory=lambda: Shares(MEMORY_BUDGET))
    """Bytes, by namespace.  Code that keeps tenant data in memory takes its share from here."""
    exec_calls: Shares = field(default_factory=lambda: Shares(EXEC_CALLS))
    """Calls of ExecSync, by namespace."""
    unfinished: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while reconciliation has work to finish."""

    def left_over(self, kind: str, record_id: str, fault: Fault) -> None:
        """Note that a half-made pod or container could not be removed.  Reconciliation tries again."""
        log.error("a half-made %s is left over: %s", kind, fault, extra=fields(id=record_id))
        self.unfinished.set()

    def pod_of(self, some_id: str) -> str:
        """``namespace/name`` of the pod with this pod or container id; "" if unknown."""
        try:
            pod = self.sandboxes.find_or_none(some_id)
            meta = (pod or self.sandboxes.get(self.containers.find(some_id).sandbox_id)).config.metadata
        except Fault:
            return ""
        return f"{meta.namespace}/{meta.name}"

    def containers_of(self, sandbox_id: str) -> list[Container]:
        """All containers of a sandbox, hidden ones too."""
        return [container for container in self.containers.all() if container.sandbox_id == sandbox_id]


def now_ns() -> int:
    """Nanoseconds since the epoch."""
    return time.time_ns()
