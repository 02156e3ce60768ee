"""Assembles protectd: each part is built from its collaborators, and no part knows the whole.

Only ``__main__`` and tests import this module; the import rules hold all other modules below it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import grpc.aio

from protect.agent.link import LinkFactory
from protect.config import ProtectdConfig
from protect.model.ports import HostFiles, LogFactory, ScratchDisks, Splice, ZoneVolumes
from protect.model.toolstack import Toolstack
from protect.model.volume import HostDevices
from protect.server.devices import DevicesServicer
from protect.server.figures import Figures
from protect.server.host import HostServicer
from protect.server.reservations import ReservationsServicer
from protect.server.workloads import WorkloadsServicer, WorkloadVerbs
from protect.server.zones import ZonesServicer, ZoneVerbs
from protect.state.daemon_lifetime import AdmissionGate, DaemonLifetime
from protect.state.ledger import Ledger
from protect.state.output_memory import OutputMemory
from protect.state.registry import Registry
from protect.state.workload_logs import WorkloadLogs
from protect.state.zone_dirs import ZoneDirs
from protect.workloads.adopt import WorkloadAdoption
from protect.workloads.create import WorkloadCreation
from protect.workloads.delete import WorkloadRemoval
from protect.workloads.devices.attach import DeviceAttachment
from protect.workloads.devices.find import DeviceSearch
from protect.workloads.devices.zone import ZoneDevices
from protect.workloads.exec import Execs
from protect.workloads.exits import WorkloadExits
from protect.workloads.file_copies import FileCopies
from protect.workloads.renew_files import FileRenewal
from protect.zones.admission import ZoneAdmission
from protect.zones.capacity.host_memory import MemorySampler
from protect.zones.capacity.reservation_book import ReservationBook
from protect.zones.deaths import ZoneDeaths
from protect.zones.destroy import ZoneRemoval
from protect.zones.launch import ZoneLaunch
from protect.zones.link_events import ReportReactions, ZoneLinks
from protect.zones.reconcile import Reconcile, ZoneCleanup
from protect.zones.recovery.adopt_zone import ZoneAdoption
from protect.zones.recovery.load_records import RecordLoader
from protect.zones.recovery.orphans import Orphans
from protect.zones.recovery.periodic import PeriodicReconcile
from protect.zones.recovery.resync import Resync
from protect.zones.recovery.shutdown import ZoneShutdown
from protect.zones.size.follow import MemoryFollower
from protect.zones.size.sizing import Sizing
from protect.zones.upkeep.clock import ZoneClocks
from protect.zones.upkeep.silence import SilenceWatch
from xenpod_proto.protect.v1 import protect_pb2_grpc, reservations_pb2_grpc


@dataclass(frozen=True, slots=True)
class HostPorts:
    """Ports to the host."""

    volumes: ZoneVolumes
    files: HostFiles
    devices: HostDevices
    scratch: ScratchDisks
    splice: Splice
    logs: LogFactory
    links: LinkFactory


@dataclass(frozen=True)
class Assembly:
    """The parts of one protectd; a part is built at its first use."""

    config: ProtectdConfig
    toolstack: Toolstack
    ports: HostPorts
    registry: Registry
    ledger: Ledger
    lifetime: DaemonLifetime = field(default_factory=DaemonLifetime)
    gate: AdmissionGate = field(default_factory=AdmissionGate)

    def stop(self) -> None:
        """Release all callers with long waits."""
        cause = "protectd is stopping"
        self.lifetime.stopping.declare(cause)
        self.registry.release_callers(cause)
        self.ledger.close()

    async def close(self) -> None:
        """Wait for tasks under way, then close channels and logs.  Zones go on running."""
        await self.lifetime.tasks.close(self.config.timeouts.stop)
        await self.registry.close()

    # -- host

    @cached_property
    def dirs(self) -> ZoneDirs:
        return ZoneDirs(self.config.run_dir / "zones")

    @cached_property
    def memory(self) -> OutputMemory:
        return OutputMemory(self.registry)

    @cached_property
    def logs(self) -> WorkloadLogs:
        return WorkloadLogs(self.ports.logs, self.dirs)

    @cached_property
    def sampler(self) -> MemorySampler:
        return MemorySampler(self.registry, self.ledger, self.toolstack)

    @cached_property
    def reservations(self) -> ReservationBook:
        return ReservationBook(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            sampler=self.sampler,
            named_devices=self.config.host.devices,
            limits=self.config.limits,
        )

    @cached_property
    def figures(self) -> Figures:
        return Figures(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            sampler=self.sampler,
            scratch=self.ports.scratch,
            limits=self.config.limits,
        )

    # -- workloads

    @cached_property
    def copies(self) -> FileCopies:
        renewal = FileRenewal(self.ports.files, self.lifetime, self.config.timeouts)
        return FileCopies(self.ports.files, renewal, self.config.timeouts)

    @cached_property
    def device_search(self) -> DeviceSearch:
        return DeviceSearch(self.ports.devices, self.config.host.devices, self.config.timeouts)

    @cached_property
    def attachment(self) -> DeviceAttachment:
        return DeviceAttachment(self.registry, self.toolstack, self.config.limits)

    @cached_property
    def zone_devices(self) -> ZoneDevices:
        return ZoneDevices(
            toolstack=self.toolstack,
            device_search=self.device_search,
            attachment=self.attachment,
            named_devices=self.config.host.devices,
        )

    @cached_property
    def creation(self) -> WorkloadCreation:
        return WorkloadCreation(
            registry=self.registry,
            toolstack=self.toolstack,
            volumes=self.ports.volumes,
            logs=self.logs,
            tasks=self.lifetime.tasks,
            copies=self.copies,
            device_search=self.device_search,
            attachment=self.attachment,
            workload_removal=self.workload_removal,
            limits=self.config.limits,
            timeouts=self.config.timeouts,
        )

    @cached_property
    def workload_removal(self) -> WorkloadRemoval:
        return WorkloadRemoval(
            registry=self.registry,
            toolstack=self.toolstack,
            volumes=self.ports.volumes,
            dirs=self.dirs,
            attachment=self.attachment,
            timeouts=self.config.timeouts,
        )

    @cached_property
    def workload_adoption(self) -> WorkloadAdoption:
        return WorkloadAdoption(
            registry=self.registry,
            volumes=self.ports.volumes,
            logs=self.logs,
            tasks=self.lifetime.tasks,
            copies=self.copies,
        )

    @cached_property
    def execs(self) -> Execs:
        return Execs(
            registry=self.registry,
            memory=self.memory,
            tasks=self.lifetime.tasks,
            limits=self.config.limits,
            timeouts=self.config.timeouts,
        )

    @cached_property
    def exits(self) -> WorkloadExits:
        return WorkloadExits(
            registry=self.registry,
            volumes=self.ports.volumes,
            tasks=self.lifetime.tasks,
            copies=self.copies,
            timeouts=self.config.timeouts,
        )

    # -- zones

    @cached_property
    def admission(self) -> ZoneAdmission:
        return ZoneAdmission(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            sampler=self.sampler,
            scratch=self.ports.scratch,
            gate=self.gate,
            named_devices=self.config.host.devices,
            limits=self.config.limits,
        )

    @cached_property
    def launcher(self) -> ZoneLaunch:
        return ZoneLaunch(
            registry=self.registry,
            toolstack=self.toolstack,
            volumes=self.ports.volumes,
            scratch=self.ports.scratch,
            zone_devices=self.zone_devices,
            admission=self.admission,
            removal=self.removal,
            deaths=self.deaths,
            clocks=self.clocks,
            zone_links=self.zone_links,
            timeouts=self.config.timeouts,
        )

    @cached_property
    def removal(self) -> ZoneRemoval:
        return ZoneRemoval(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            volumes=self.ports.volumes,
            scratch=self.ports.scratch,
            dirs=self.dirs,
        )

    @cached_property
    def deaths(self) -> ZoneDeaths:
        return ZoneDeaths(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            scratch=self.ports.scratch,
            tasks=self.lifetime.tasks,
            exits=self.exits,
        )

    @cached_property
    def silence(self) -> SilenceWatch:
        return SilenceWatch(self.toolstack, self.lifetime.stopping, self.deaths, self.config.timeouts)

    @cached_property
    def clocks(self) -> ZoneClocks:
        return ZoneClocks(self.registry, self.toolstack, self.lifetime, self.config.timeouts)

    @cached_property
    def sizing(self) -> Sizing:
        return Sizing(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            sampler=self.sampler,
            timeouts=self.config.timeouts,
        )

    @cached_property
    def follower(self) -> MemoryFollower:
        return MemoryFollower(self.registry, self.sizing, self.config.memory)

    @cached_property
    def zone_links(self) -> ZoneLinks:
        reactions = ReportReactions(
            registry=self.registry,
            lifetime=self.lifetime,
            exits=self.exits,
            deaths=self.deaths,
            orphans=self.orphans,
            resync=self.resync,
            silence=self.silence,
            clocks=self.clocks,
        )
        return ZoneLinks(self.toolstack, self.ports.links, reactions)

    # -- recovery

    @cached_property
    def loader(self) -> RecordLoader:
        return RecordLoader(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            sampler=self.sampler,
            volumes=self.ports.volumes,
            scratch=self.ports.scratch,
            dirs=self.dirs,
        )

    @cached_property
    def reconcile(self) -> Reconcile:
        cleanup = ZoneCleanup(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            volumes=self.ports.volumes,
            scratch=self.ports.scratch,
            deaths=self.deaths,
            resync=self.resync,
        )
        return Reconcile(
            registry=self.registry,
            toolstack=self.toolstack,
            lifetime=self.lifetime,
            removal=self.removal,
            orphans=self.orphans,
            cleanup=cleanup,
            zone_adoption=self.zone_adoption,
        )

    @cached_property
    def zone_adoption(self) -> ZoneAdoption:
        return ZoneAdoption(
            registry=self.registry,
            toolstack=self.toolstack,
            volumes=self.ports.volumes,
            splice=self.ports.splice,
            tasks=self.lifetime.tasks,
            attachment=self.attachment,
            silence=self.silence,
            zone_links=self.zone_links,
            sizing=self.sizing,
            timeouts=self.config.timeouts,
        )

    @cached_property
    def resync(self) -> Resync:
        return Resync(
            tasks=self.lifetime.tasks,
            exits=self.exits,
            workload_removal=self.workload_removal,
            workload_adoption=self.workload_adoption,
        )

    @cached_property
    def orphans(self) -> Orphans:
        return Orphans(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            volumes=self.ports.volumes,
            dirs=self.dirs,
        )

    @cached_property
    def shutdown(self) -> ZoneShutdown:
        return ZoneShutdown(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            gate=self.gate,
            deaths=self.deaths,
        )

    @cached_property
    def periodic(self) -> PeriodicReconcile:
        return PeriodicReconcile(
            registry=self.registry,
            toolstack=self.toolstack,
            tasks=self.lifetime.tasks,
            deaths=self.deaths,
            reconcile=self.reconcile,
            timeouts=self.config.timeouts,
        )

    # -- services

    def add_services(self, server: grpc.aio.Server) -> None:
        """Add all services of protect.v1 to a server."""
        protect_pb2_grpc.add_ZonesServicer_to_server(self.zones_servicer, server)
        protect_pb2_grpc.add_WorkloadsServicer_to_server(self._workloads_servicer(), server)
        devices = DevicesServicer(self.registry, self.attachment, self.device_search, self.config.host)
        protect_pb2_grpc.add_DevicesServicer_to_server(devices, server)
        host = HostServicer(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            sampler=self.sampler,
            scratch=self.ports.scratch,
            config=self.config,
        )
        protect_pb2_grpc.add_HostServicer_to_server(host, server)
        reservations = ReservationsServicer(
            registry=self.registry,
            ledger=self.ledger,
            toolstack=self.toolstack,
            sampler=self.sampler,
            book=self.reservations,
        )
        reservations_pb2_grpc.add_ReservationsServicer_to_server(reservations, server)

    @cached_property
    def zones_servicer(self) -> ZonesServicer:
        verbs = ZoneVerbs(
            launcher=self.launcher,
            removal=self.removal,
            reconcile=self.reconcile,
            orphans=self.orphans,
            shutdown=self.shutdown,
            sizing=self.sizing,
        )
        return ZonesServicer(
            registry=self.registry,
            toolstack=self.toolstack,
            splice=self.ports.splice,
            lifetime=self.lifetime,
            memory=self.memory,
            config=self.config,
            verbs=verbs,
        )

    def _workloads_servicer(self) -> WorkloadsServicer:
        return WorkloadsServicer(
            registry=self.registry,
            volumes=self.ports.volumes,
            lifetime=self.lifetime,
            memory=self.memory,
            timeouts=self.config.timeouts,
            verbs=WorkloadVerbs(self.creation, self.workload_removal, self.execs),
        )
