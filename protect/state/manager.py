"""The running daemon: collaborators, and the registries of zones and workloads."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from daemonkit.faults import Fault, Missing, Unreachable
from daemonkit.host.boot import boot_id
from daemonkit.logs import fields
from daemonkit.shares import Holding, Shares
from daemonkit.tasks import Background
from protect.agent.link import LinkFactory
from protect.config import ProtectdConfig
from protect.model.capacity.host import HostNotice
from protect.model.capacity.reservation import Reservation
from protect.model.events import Change, NoticeSeen, WorkloadGone, WorkloadSeen, ZoneGone, ZoneSeen
from protect.model.lifetime import End
from protect.model.ports import HostFiles, LogFactory, ScratchDisks, Splice, ZoneVolumes
from protect.model.toolstack import Toolstack
from protect.model.volume import HostDevices
from protect.model.workload import Workload, WorkloadState
from protect.model.zone import Zone
from protect.state.hub import Hub
from protect.state.ledger import Ledger
from protect.state.runtime import WorkloadRuntime, ZoneRuntime
from protect.state.store import Intent, StateStore

log = logging.getLogger(__name__)

MEMORY_BUDGET = 64 << 20
"""Bytes of output in memory for all callers together, beside a chunk for each (ADR 63)."""


@dataclass
class ZoneManager:
    """The daemon's collaborators, and the registries."""

    config: ProtectdConfig
    toolstack: Toolstack
    store: StateStore
    links: LinkFactory
    logs: LogFactory
    splice: Splice
    ledger: Ledger
    volumes: ZoneVolumes
    files: HostFiles
    devices: HostDevices
    scratch: ScratchDisks
    tasks: Background = field(default_factory=Background)
    zones: dict[str, ZoneRuntime] = field(default_factory=dict)
    workloads: dict[str, WorkloadRuntime] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    preflight: tuple[HostNotice, ...] = ()
    stopping: End = field(default_factory=lambda: End(Unreachable))
    """The end of the daemon; zones go on afterwards."""
    closed: str = ""
    """Why no more zones are admitted; "": zones are admitted."""
    host_boot: str = field(default_factory=boot_id)
    memory: Shares = field(default_factory=lambda: Shares(MEMORY_BUDGET))
    """Bytes of output on the way to callers, by tenant."""
    hub: Hub = field(init=False)

    def __post_init__(self) -> None:
        self.hub = Hub(self._everything)

    def add_zone(self, zone: Zone) -> ZoneRuntime:
        """Register a zone, before or after its record is written."""
        runtime = self.zones[zone.id] = ZoneRuntime(zone, self.config.timeouts.call)
        return runtime

    def add_workload(self, runtime: WorkloadRuntime) -> None:
        """Register a workload of a registered zone."""
        runtime.zone.workloads[runtime.id] = self.workloads[runtime.id] = runtime

    def zone(self, operation: str, zone_id: str) -> ZoneRuntime:
        try:
            return self.zones[zone_id]
        except KeyError:
            raise Missing(operation, f"zone {zone_id}", "there is none") from None

    def workload(self, operation: str, workload_id: str) -> WorkloadRuntime:
        """A workload visible to callers."""
        runtime = self.workloads.get(workload_id)
        if runtime is None or runtime.workload.state is WorkloadState.CREATING:
            raise Missing(operation, f"workload {workload_id}", "there is none")
        return runtime

    def pod_of(self, some_id: str) -> str:
        """The name of the zone with this id, or of the workload's zone; "": unknown id."""
        runtime = self.zones.get(some_id)
        if runtime is None and (workload := self.workloads.get(some_id)) is not None:
            runtime = workload.zone
        return "" if runtime is None else runtime.zone.spec.name

    def tenant_of(self, zone_id: str) -> str:
        """The namespace of a zone's pod, from the name ``namespace/name``; else the zone id."""
        return self.pod_of(zone_id).partition("/")[0] or zone_id

    def memory_of(self, zone_id: str) -> Holding:
        """Memory for a zone's output, from the tenant's share."""
        return Holding(self.memory, self.tenant_of(zone_id))

    def visible_workloads(self, zone_id: str = "") -> list[Workload]:
        return [
            runtime.workload
            for runtime in self.workloads.values()
            if runtime.workload.state is not WorkloadState.CREATING and zone_id in ("", runtime.zone.id)
        ]

    def put_zone(self, runtime: ZoneRuntime, zone: Zone, intent: Intent | None = None) -> None:
        """Record a zone's new state, then apply and publish the state."""
        self.store.save_zone(zone, intent)
        runtime.zone = zone
        self.zone_changed(runtime)

    def zone_changed(self, runtime: ZoneRuntime) -> None:
        """Publish a zone's present state."""
        self.hub.publish(ZoneSeen(runtime.zone, runtime.connected, runtime.paused))

    def update_zone(self, runtime: ZoneRuntime, zone: Zone) -> None:
        """Record a change without touching the intent of an operation under way."""
        self.store.update_zone(zone)
        runtime.zone = zone
        self.zone_changed(runtime)

    def note_zone(self, runtime: ZoneRuntime, zone: Zone, intent: Intent | None = None) -> None:
        """Record a fact; if the store fails, go on.

        The next start learns the fact again, from the hypervisor or the agent.
        """
        try:
            self.store.save_zone(zone, intent)
        except Fault as fault:
            log.error("not recorded: %s", fault, extra=fields(zone=zone.id, state=zone.state.value))
        runtime.zone = zone
        self.zone_changed(runtime)

    def put_workload(
        self, runtime: WorkloadRuntime, workload: Workload, intent: Intent | None = None
    ) -> None:
        """Record a workload's new state, then apply and publish the state."""
        self.store.save_workload(workload, intent)
        self._believe(runtime, workload)

    def note_workload(self, runtime: WorkloadRuntime, workload: Workload) -> None:
        """Record a fact as in ``note_zone``; a recorded intent stays."""
        try:
            self.store.update_workload(workload)
        except Fault as fault:
            state = workload.state.value
            log.error("not recorded: %s", fault, extra=fields(workload=workload.id, state=state))
        self._believe(runtime, workload)

    def _believe(self, runtime: WorkloadRuntime, workload: Workload) -> None:
        runtime.workload = workload
        if workload.state is WorkloadState.EXITED:
            runtime.ended.set()
        if workload.state is not WorkloadState.CREATING:
            self.hub.publish(WorkloadSeen(workload))

    def drop_workload(self, runtime: WorkloadRuntime, *, recorded: bool = True) -> None:
        """Forget a workload after its removal."""
        if recorded:
            self.store.forget_workload(runtime.id)
        runtime.gone = True
        runtime.ended.set()
        runtime.zone.workloads.pop(runtime.id, None)
        runtime.zone.files.release(runtime.id)
        if self.workloads.pop(runtime.id, None) and runtime.workload.state is not WorkloadState.CREATING:
            self.hub.publish(WorkloadGone(runtime.id))

    def drop_zone(self, runtime: ZoneRuntime) -> None:
        """Forget a zone and its workloads, after their removal."""
        self.store.forget_zone(runtime.id)
        for workload in list(runtime.workloads.values()):
            self.drop_workload(workload, recorded=False)
        self.ledger.release(runtime.id)
        if self.zones.pop(runtime.id, None):
            self.hub.publish(ZoneGone(runtime.id))

    def put_reservation(self, reservation: Reservation) -> None:
        """Record a reservation, then register the reservation."""
        self.store.save_reservation(reservation)
        self.reservations[reservation.id] = reservation

    def drop_reservation(self, reservation_id: str) -> None:
        """Forget a reservation.  The ledger releases the memory."""
        self.store.forget_reservation(reservation_id)
        self.reservations.pop(reservation_id, None)

    def declare_end(self, runtime: ZoneRuntime, cause: str) -> None:
        """Declare a zone's end, and wake the verbs that wait for the agent or the kernel."""
        runtime.end.declare(cause)
        if runtime.zone.domain_id:
            self.toolstack.abandon(runtime.zone.domain_id)

    def stop(self) -> None:
        """Release all callers with long waits."""
        self.stopping.declare("protectd is stopping")
        for zone in self.zones.values():
            for run in zone.execs.values():
                run.fail(Unreachable("exec", f"workload {run.workload_id}", "protectd is stopping"))
        self.hub.close()
        self.ledger.close()

    async def close(self) -> None:
        """Wait for tasks under way, then close channels and logs.  Zones go on running."""
        await self.tasks.close(self.config.timeouts.stop)
        await asyncio.gather(*(zone.client.close() for zone in self.zones.values()))
        outputs = [workload.outputs for workload in self.workloads.values() if workload.outputs is not None]
        await asyncio.gather(*(one.log.close() for one in outputs))

    def zone_dir(self, zone_id: str) -> Path:
        """Directory of the journals of a zone's logs."""
        return self.config.run_dir / "zones" / zone_id

    def journal(self, runtime: WorkloadRuntime) -> Path:
        return self.zone_dir(runtime.zone.id) / f"{runtime.id}.journal"

    def clear_zone_dir(self, zone_id: str) -> None:
        shutil.rmtree(self.zone_dir(zone_id), ignore_errors=True)

    def _everything(self) -> Iterable[Change]:
        for runtime in self.zones.values():
            yield ZoneSeen(runtime.zone, runtime.connected, runtime.paused)
        for workload in self.visible_workloads():
            yield WorkloadSeen(workload)
        for notice in self.preflight:
            yield NoticeSeen(notice)


def now_ns() -> int:
    """The host's clock, ns since the epoch."""
    return time.time_ns()
