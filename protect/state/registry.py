"""Registry of zones, workloads and reservations: records each change in the store, then publishes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from daemonkit.faults import Fault, Missing, Unreachable
from daemonkit.host.boot import boot_id
from daemonkit.logs import fields
from protect.config import Timeouts
from protect.model.capacity.host_resources import HostNotice
from protect.model.capacity.reservation import Reservation
from protect.model.watch_events import (
    Change,
    NoticeGone,
    NoticeSeen,
    WorkloadGone,
    WorkloadSeen,
    ZoneGone,
    ZoneSeen,
)
from protect.model.workload import Workload, WorkloadState
from protect.model.zone import Zone
from protect.state.hub import Hub
from protect.state.runtime import WorkloadRuntime, ZoneRuntime
from protect.state.store import Intent, StateStore

log = logging.getLogger(__name__)


@dataclass
class Registry:
    """Zones, workloads, reservations and notices by id, with their store and their hub of changes."""

    store: StateStore
    timeouts: Timeouts
    zones: dict[str, ZoneRuntime] = field(default_factory=dict)
    workloads: dict[str, WorkloadRuntime] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    notices: tuple[HostNotice, ...] = ()
    host_boot: str = field(default_factory=boot_id)
    """The host's present boot; a zone belongs to one boot."""
    hub: Hub = field(init=False)

    def __post_init__(self) -> None:
        self.hub = Hub(self._everything)

    def add_zone(self, zone: Zone) -> ZoneRuntime:
        """Register a zone, before or after its record is written."""
        runtime = self.zones[zone.id] = ZoneRuntime(zone, self.timeouts.call)
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
        """Forget a zone and its workloads, after their removal.  The caller releases the memory."""
        self.store.forget_zone(runtime.id)
        for workload in list(runtime.workloads.values()):
            self.drop_workload(workload, recorded=False)
        if self.zones.pop(runtime.id, None):
            self.hub.publish(ZoneGone(runtime.id))

    def put_reservation(self, reservation: Reservation) -> None:
        """Record a reservation, then register the reservation."""
        self.store.save_reservation(reservation)
        self.reservations[reservation.id] = reservation

    def drop_reservation(self, reservation_id: str) -> None:
        """Forget a reservation.  The caller releases the memory."""
        self.store.forget_reservation(reservation_id)
        self.reservations.pop(reservation_id, None)

    def put_notices(self, notices: tuple[HostNotice, ...]) -> list[HostNotice]:
        """Replace the notices, and publish the changes; returns the new notices."""
        before, self.notices = self.notices, notices
        new = [notice for notice in notices if notice not in before]
        for notice in new:
            self.hub.publish(NoticeSeen(notice))
        for setting in {notice.setting for notice in before} - {notice.setting for notice in notices}:
            self.hub.publish(NoticeGone(setting))
        return new

    def release_callers(self, cause: str) -> None:
        """End the execs and watches of all callers, because the daemon stops."""
        for zone in self.zones.values():
            for run in zone.execs.values():
                run.fail(Unreachable("exec", f"workload {run.workload_id}", cause))
        self.hub.close()

    async def close(self) -> None:
        """Close channels and logs.  Zones go on running."""
        await asyncio.gather(*(zone.client.close() for zone in self.zones.values()))
        outputs = [workload.outputs for workload in self.workloads.values() if workload.outputs is not None]
        await asyncio.gather(*(one.log.close() for one in outputs))

    def _everything(self) -> Iterable[Change]:
        for runtime in self.zones.values():
            yield ZoneSeen(runtime.zone, runtime.connected, runtime.paused)
        for workload in self.visible_workloads():
            yield WorkloadSeen(workload)
        for notice in self.notices:
            yield NoticeSeen(notice)
