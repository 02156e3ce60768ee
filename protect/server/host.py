"""The gRPC service protect.v1.Host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import grpc.aio

from daemonkit.faults import Invalid
from daemonkit.rpc.interceptors import read_only
from protect.config import HostConfig, ProtectdConfig
from protect.host import named_devices
from protect.model import checks
from protect.model.capacity.modes import WantedMode, pvh_lacks
from protect.model.ports import ScratchDisks
from protect.model.toolstack import Capabilities, Mode, Toolstack
from protect.server import translate
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.zones.capacity import preflight
from protect.zones.capacity.host_memory import MemorySampler
from protect.zones.recovery.orphans import unknown
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

_LABELS_LIMIT = 64

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, eq=False)
class HostServicer(protect_pb2_grpc.HostServicer):
    """Answers with facts of the host, and a stream of changes."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    sampler: MemorySampler
    scratch: ScratchDisks
    config: ProtectdConfig

    @read_only
    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        config = self.config
        lacking = await self._unknown_labels(request.seclabels)
        await self.sampler.refresh()
        await preflight.check_host(self.registry, self.toolstack, config)
        capacity = self.toolstack.capacity(config.limits.disks_per_zone)
        physical = await self.toolstack.physical_info()
        orphans = unknown(self.registry, await self.toolstack.list())
        memory, can = self.ledger.capacity(), self.toolstack.capabilities()
        return pb.InfoResponse(
            version=version("xenpod"),
            toolstack=self.toolstack.name,
            security_boundary=physical.security_boundary,
            notices=[
                *physical.notices,
                *mode_notices(config, can),
                *(notice.text for notice in self.registry.notices),
                *rate_notices(config, can),
            ],
            preflight=[translate.host_notice(notice) for notice in self.registry.notices],
            zones_most=capacity.domains,
            zones_bound=capacity.bound,
            memory=pb.MemoryLedger(
                total_bytes=memory.total,
                reserved_bytes=memory.promised,
                free_bytes=memory.free,
                reservations_bytes=memory.reservations,
                foreign_bytes=memory.foreign,
                dom0_bytes=memory.dom0,
                sharing_bytes=memory.sharing,
            ),
            scratch=await _scratch(self.scratch, config),
            cpus=physical.cpus,
            profiles=config.profile_names(),
            profile_bounds=bounds(config),
            xen_version=physical.version,
            user_namespaces=physical.user_namespaces,
            selinux=physical.selinux,
            zone_kernels=physical.kernels,
            unknown_domains=[f"{domain.id} {domain.name} {domain.uuid}" for domain in orphans],
            capabilities=await _capabilities(config.host, can),
            unknown_seclabels=lacking,
        )

    async def _unknown_labels(self, wanted: Sequence[str]) -> list[str]:
        if len(wanted) > _LABELS_LIMIT:
            raise Invalid("read host info", "", f"{len(wanted)} labels are more than {_LABELS_LIMIT}")
        labels = [checks.seclabel("read host info", label) for label in wanted]
        return [label for label in labels if not await self.toolstack.has_seclabel(label)]

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.WatchEvent]:
        toolstack = self.toolstack.name
        async with aclosing(self.registry.hub.watch()) as events:
            async for event in events:
                yield translate.event(event, toolstack)


def bounds(config: ProtectdConfig) -> list[pb.ProfileBounds]:
    """The bounds of each profile: sizes of zones, and their mode."""
    profiles = {name: config.profile(name) for name in config.profile_names()}
    return [
        pb.ProfileBounds(
            name=name,
            memory_min_bytes=profile.memory_min,
            memory_max_bytes=profile.memory_max,
            vcpus_max=profile.vcpus_max,
            memory_bytes=profile.memory,
            vcpus=profile.vcpus,
            mode=translate.WANTED_MODES[profile.mode],
            scratch_bytes=profile.scratch,
            scratch_max_bytes=profile.scratch_max,
        )
        for name, profile in profiles.items()
    ]


def mode_notices(config: ProtectdConfig, capabilities: Capabilities) -> list[str]:
    """A notice for each profile whose zones are PV because the host lacks something for PVH."""
    why = pvh_lacks(capabilities)
    automatic = [name for name in config.profile_names() if config.profile(name).mode is WantedMode.AUTO]
    return [f"profile {name}: mode auto gives pv zones, as {why}" for name in automatic if why]


async def _scratch(scratch: ScratchDisks, config: ProtectdConfig) -> pb.ScratchLedger:
    """Current disk space for scratch disks."""
    now = await asyncio.to_thread(scratch.capacity)
    return pb.ScratchLedger(
        promised_bytes=now.promised_bytes,
        written_bytes=now.written_bytes,
        free_bytes=now.free_bytes,
        overcommit=config.scratch.overcommit,
    )


def rate_notices(config: ProtectdConfig, capabilities: Capabilities) -> list[str]:
    """A notice if the configuration limits disk rates and the host cannot."""
    if capabilities.disk_rates or not config.limits.disk_rates:
        return []
    return ["limits.disk_* are not held: the kernel of this host has no controller for rates of disks"]


async def _capabilities(config: HostConfig, can: Capabilities) -> pb.HostCapabilities:
    """The host's capabilities; only devices change while protectd runs."""
    places = {name: device.place for name, device in config.devices.items()}
    there = await asyncio.to_thread(named_devices.present, places)
    return pb.HostCapabilities(
        pv=can.pv,
        hvm=can.hvm,
        hap=can.hap,
        iommu=can.iommu,
        hypervisor_version=can.hypervisor_version,
        devices=sorted(there),
        absent_devices=sorted(config.devices.keys() - there),
        labels=config.labels,
        kernel_lacks=[translate.ZONE_MODES[mode] for mode in Mode if mode not in can.kernel_modes],
        flask=can.flask,
        disk_rates=can.disk_rates,
        numa_nodes=can.numa_nodes,
    )
