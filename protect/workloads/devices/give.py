"""Gives a new workload its requested devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daemonkit.checkpoints import checkpoint
from protect.model.container import WorkloadSpec
from protect.model.volume import DeviceKind, ZoneDevice
from protect.state.runtime import ZoneRuntime
from protect.workloads.devices.attach import DeviceAttachment
from protect.workloads.devices.nodes import Node, with_nodes


async def give(
    attachment: DeviceAttachment, zone: ZoneRuntime, spec: WorkloadSpec, found: Sequence[ZoneDevice]
) -> WorkloadSpec:
    """Attach each device unless attached already; returns the spec with device nodes for the container.

    ``found``: the devices of the spec.  After a failure ``attach.release`` detaches the devices.
    """
    nodes = []
    for request, wanted in zip(spec.devices, found, strict=True):
        device = await attachment.acquire(zone, wanted, spec.id)
        if device.kind is DeviceKind.BLOCK and request.container_path:
            nodes.append(Node(request, device, await zone.agent.find_device(device.vdev)))
    if found:
        checkpoint("device-give.given")
    return replace(spec, oci_config=with_nodes(spec.id, spec.oci_config, nodes))
