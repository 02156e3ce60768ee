"""UpdateContainerResources: sets limits in the zone's cgroups, and records them for statuses."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace

from cri.container.growth import ZoneGrowth
from cri.container.shares import PodShares
from cri.oci.resources import resources
from cri.state.container import Container
from cri.state.pod_records import PodRecords
from cri.zones.client import Zones
from daemonkit.faults import Fault, Invalid, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

UPDATE = "update container"
_PARTS = (
    ("memory_limit_in_bytes", "memory_swap_limit_in_bytes"),
    ("cpu_shares",),
    ("cpu_quota", "cpu_period"),
    ("cpuset_cpus",),
    ("cpuset_mems",),
    ("unified",),
)
"""Limits that the kernel takes or refuses together."""
_PERIOD_MICROSECONDS = 100_000  # the kernel's default, microseconds
_LARGEST_INT64 = 2**63 - 1  # of a field


@dataclass(frozen=True, slots=True)
class UpdateContainer:
    """Changes the limits of containers."""

    records: PodRecords
    zones: Zones
    shares: PodShares
    growth: ZoneGrowth

    async def update(self, asked: cri.UpdateContainerResourcesRequest) -> None:
        """Change limits; 0 and "" leave a limit unchanged.

        Refused: the container has ended, or the kernel refuses.
        """
        container_id = self.records.containers.find(asked.container_id).id
        async with self.records.locks.hold(container_id):
            container = self.records.containers.get(container_id)
            if not container.live:
                raise Refused(UPDATE, container_id, f"it is {container.phase.value}")
            if asked.HasField("windows"):
                raise Invalid(UPDATE, container_id, "windows is set", "zones run Linux")
            wanted = _wanted(container.config.linux.resources, asked.linux)
            changes = _changes(container, wanted)
            # The zone and the record change together, even if the caller is cancelled.
            await complete(self._update(container_id, wanted, changes))

    async def _update(
        self, container_id: str, asked: cri.LinuxContainerResources, changes: dict[str, object]
    ) -> None:
        if not changes:
            return
        container = self.records.containers.get(container_id)
        sandbox_id, merged = container.sandbox_id, cri.LinuxContainerResources()
        merged.CopyFrom(container.config.linux.resources)
        merge(merged, asked)
        await self.growth.grow(UPDATE, container_id, merged)
        try:
            await self._apply(container_id, asked, changes)
        except Refused:
            await self._one_by_one(container_id, asked)
            await self.shares.settle_or_log(sandbox_id)
            raise
        await self.shares.settle(sandbox_id)

    async def _one_by_one(self, container_id: str, asked: cri.LinuxContainerResources) -> None:
        """Set the limits one by one, and find the limits that the kernel accepts.

        The OCI runtime stops at the first refused limit, and has set the limits before.
        """
        parts = [_part(asked, names) for names in _PARTS]
        parts = [part for part in parts if part.ByteSize()]
        for part in parts if len(parts) > 1 else ():
            try:
                if changes := _changes(self.records.containers.get(container_id), part):
                    await self._apply(container_id, part, changes)
            except Refused as fault:
                log.info("not changed: %s", fault, extra=fields(container=container_id))

    async def _apply(
        self, container_id: str, asked: cri.LinuxContainerResources, changes: dict[str, object]
    ) -> None:
        await self.zones.update_workload(container_id, json.dumps(changes).encode())
        container = self.records.containers.get(container_id)
        config = cri.ContainerConfig()
        config.CopyFrom(container.config)
        merge(config.linux.resources, asked)
        await self.records.containers.put(replace(container, config=config))
        log.info("container updated", extra=fields(container=container_id, changes=",".join(sorted(changes))))


def _part(asked: cri.LinuxContainerResources, names: tuple[str, ...]) -> cri.LinuxContainerResources:
    part = cri.LinuxContainerResources()
    part.CopyFrom(asked)
    for field, _ in asked.ListFields():
        if field.name not in names:
            part.ClearField(field.name)  # type: ignore[arg-type]  # a field of the same message
    return part


def merge(into: cri.LinuxContainerResources, asked: cri.LinuxContainerResources) -> None:
    """Replace the fields that ``asked`` sets; maps and lists as a whole."""
    for field, _ in asked.ListFields():
        into.ClearField(field.name)  # type: ignore[arg-type]  # a field of the same message
    into.MergeFrom(asked)


def _wanted(
    now: cri.LinuxContainerResources, asked: cri.LinuxContainerResources
) -> cri.LinuxContainerResources:
    """Add the limits that depend on requested ones.

    The limit of memory and swap together follows the memory limit, unless the request sets both.  Quota and
    period are one limit to the kernel: setting the one keeps the other.  oom_score_adj is fixed when a
    process starts; the kubelet sends the field with every update, and other runtimes ignore the field too.
    """
    wanted = cri.LinuxContainerResources()
    wanted.CopyFrom(asked)
    wanted.ClearField("oom_score_adj")
    if asked.memory_limit_in_bytes > 0 < now.memory_swap_limit_in_bytes:
        swap = max(0, now.memory_swap_limit_in_bytes - now.memory_limit_in_bytes)
        wanted.memory_swap_limit_in_bytes = asked.memory_swap_limit_in_bytes or min(
            asked.memory_limit_in_bytes + swap, _LARGEST_INT64
        )
    if asked.cpu_quota or asked.cpu_period:
        wanted.cpu_quota = asked.cpu_quota or now.cpu_quota
        wanted.cpu_period = asked.cpu_period or now.cpu_period
    return wanted


def _changes(container: Container, asked: cri.LinuxContainerResources) -> dict[str, object]:
    """The requested changes as OCI ``linux.resources``, without devices."""
    now = container.config.linux.resources
    try:
        wanted = resources(asked, 0)
    except Fault as fault:
        raise type(fault)(UPDATE, container.id, f"{fault.subject}: {fault.cause}", fault.hint) from None
    changes = {key: value for key, value in wanted.items() if key != "devices"}
    if asked.cpu_quota < 0 < now.cpu_quota:
        # To lift the limit, crun needs the period too.
        cpu = changes.get("cpu")
        lifted = {"quota": -1, "period": asked.cpu_period or _PERIOD_MICROSECONDS}
        changes["cpu"] = {**(cpu if isinstance(cpu, dict) else {}), **lifted}
    return changes
