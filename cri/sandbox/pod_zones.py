"""The zones of pods: launch, connection to the network, end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cri.checks import host_devices
from cri.checks.handlers import MODES
from cri.config import CriConfig
from cri.container.shares import PodShares
from cri.ports import Images
from cri.sandbox import kernel, sizing
from cri.sandbox.disk_rates import disk_rates
from cri.sandbox.pod_plan import id_mapping
from cri.sandbox.sysctls import sysctls
from cri.state.attachment import Attachment
from cri.state.sandbox import Sandbox
from cri.zones.client import Zones
from daemonkit.checkpoints import checkpoint
from xenpod_proto.protect.v1 import protect_pb2 as pb


@dataclass(frozen=True, slots=True)
class PodZones:
    """Makes and destroys the zones of pods."""

    config: CriConfig
    zones: Zones
    images: Images
    shares: PodShares

    def hold_kernel(self, sandbox: Sandbox) -> None:
        """Keep the kernel image until ``release_kernel``; Missing if the image is gone."""
        kernel.hold_kernel(self.images, sandbox.kernel, sandbox.id)

    def release_kernel(self, sandbox_id: str) -> None:
        """End the hold, if any."""
        kernel.release_kernel(self.images, sandbox_id)

    async def create(self, sandbox: Sandbox, namespace: Callable[[], Awaitable[object]]) -> pb.Zone:
        """Boot the zone while the CNI plugins run.

        The network namespace comes first: the zone's interface is made inside.
        """
        found = await self.images.kernel(sandbox.kernel) if sandbox.kernel else None
        await namespace()
        shares = self.shares.of(sandbox.id, sandbox.config.linux)
        meta, handler = sandbox.config.metadata, self.config.handlers[sandbox.handler]
        zone = await self.zones.create_zone(
            pb.CreateZoneRequest(
                id=sandbox.id,
                name=f"{meta.namespace}/{meta.name}",
                hostname=sandbox.hostname,
                resources=shares.put(
                    sizing.zone_resources(sandbox.config, self.config.zone.memory_overhead, handler)
                ),
                profile=handler.profile,
                sysctls=sysctls(sandbox.config),
                interfaces=1,
                netns_path=str(sandbox.attachment.netns),
                id_mapping=id_mapping(sandbox.config),
                kernel=found,
                mode=MODES[handler.mode],
                seclabel=handler.seclabel,
                scratch_bytes=handler.scratch_size or None,
                cpupool=handler.cpupool,
                devices=host_devices.of_pod(sandbox.config.annotations, handler),
                pod_uid=meta.uid,
                memory_bound_bytes=handler.memory_max,
                vcpus_bound=handler.vcpus_max,
                disk_rates=disk_rates(sandbox.config, sandbox.handler, handler),
            )
        )
        self.shares.sent(sandbox.id, shares)
        checkpoint("run-pod.zone-created")
        return zone

    async def connect(self, sandbox: Sandbox, attached: Attachment) -> None:
        """Connect the zone to the pod's network."""
        spoof_check = self.config.handlers[sandbox.handler].spoof_check
        netns, interface = str(attached.netns), attached.interface
        await self.zones.connect_network(sandbox.id, netns, interface, spoof_check=spoof_check)

    async def destroy(self, sandbox_id: str) -> None:
        """Destroy the zone, and release its kernel image.  May be repeated."""
        await self.zones.destroy_zone(sandbox_id)
        self.release_kernel(sandbox_id)
