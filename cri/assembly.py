"""Assembles the parts of xenpod-cri."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from cri.config import CriConfig
from cri.container.container_plan import PlanContainer
from cri.container.create_container import CreateContainer
from cri.container.execsync import ExecSync
from cri.container.growth import ZoneGrowth
from cri.container.remove import RemoveContainer
from cri.container.shares import PodShares
from cri.container.start import StartContainer
from cri.container.stop import StopContainer
from cri.container.update import UpdateContainer
from cri.ports import Images, PodNetwork
from cri.rpc.pod_cidr import PodCidr
from cri.rpc.runtime import RuntimeService
from cri.rpc.status import NodeStatus
from cri.rpc.verbs import ContainerVerbs, PodVerbs
from cri.sandbox import kernel
from cri.sandbox.pod_plan import PlanSandbox
from cri.sandbox.pod_zones import PodZones
from cri.sandbox.reconcile import Reconciler
from cri.sandbox.remove import RemoveSandbox
from cri.sandbox.run import RunSandbox
from cri.sandbox.stop import StopSandbox
from cri.sandbox.update import UpdateSandbox
from cri.state.changes import StateChanges
from cri.state.container import NEXT as CONTAINER_NEXT
from cri.state.container import Container
from cri.state.container_events import Events
from cri.state.database import Database
from cri.state.list_capacity import ListCapacity
from cri.state.names import container_name, sandbox_name
from cri.state.pod_records import PodRecords
from cri.state.records import Records
from cri.state.sandbox import NEXT as SANDBOX_NEXT
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.state.unfinished import Unfinished
from cri.stats.containers import ContainerStatistics
from cri.stats.pods import PodStatistics
from cri.stats.rates import Rates
from cri.streaming.server import Server
from cri.zones.client import Zones
from cri.zones.follow import Follower, HostInfo
from daemonkit.faults import Missing
from daemonkit.host.paths import HostPaths
from daemonkit.logs import fields

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CriDaemon:
    """The assembled parts.  ``__main__`` takes the daemon apart: no function gets the whole."""

    config: CriConfig
    records: PodRecords
    zones: Zones
    follower: Follower
    host: HostInfo
    images: Images
    network: PodNetwork
    events: Events
    capacity: ListCapacity
    pod_cidr: PodCidr
    pods: PodVerbs
    containers: ContainerVerbs

    def service(self, streaming: Server, rates: Rates) -> RuntimeService:
        """The servicer; exec, attach and port-forward lead to ``streaming``."""
        of_containers = ContainerStatistics(self.records, self.zones, rates, self.config.state_dir)
        return RuntimeService(
            self.pods,
            self.containers,
            records=self.records,
            zones=self.zones,
            events=self.events,
            status=NodeStatus(self.config, self.host, self.network, self.images, self.pod_cidr),
            pod_cidr=self.pod_cidr,
            statistics=PodStatistics(self.records, self.zones, rates, of_containers),
            streaming=streaming,
        )


def pod_records(store: Database) -> PodRecords:
    """The records, still empty."""
    return PodRecords(
        Records("pod sandbox", SANDBOX_NEXT, store.save_sandbox, store.delete_sandbox),
        Records("container", CONTAINER_NEXT, store.save_container, store.delete_container),
    )


def assembled(
    config: CriConfig,
    records: PodRecords,
    images: Images,
    network: PodNetwork,
    zones: Zones,
    paths: HostPaths,
) -> tuple[CriDaemon, Reconciler]:
    """All parts, over adopted records."""
    sandboxes, containers = records.sandboxes, records.containers
    unfinished = Unfinished()
    shares = PodShares(records, zones, unfinished, config.zone.cpu_overhead)
    changes = StateChanges(sandboxes, containers, time.time_ns)
    follower = Follower(zones, changes, unfinished.set)
    host = HostInfo(zones, follower, [handler.seclabel for handler in config.handlers.values()])
    capacity = ListCapacity(sandboxes, containers)
    growth = ZoneGrowth(records, shares, config.zone.memory_overhead)
    stop_container = StopContainer(containers, zones, changes)
    remove_container = RemoveContainer(records, zones, images, unfinished, stop_container, changes)
    planner = PlanContainer(containers, config, images, zones, host, paths)
    container_verbs = ContainerVerbs(
        create=CreateContainer(records, capacity, images, zones, shares, planner, remove_container),
        start=StartContainer(records, zones, changes),
        stop=stop_container,
        remove=remove_container,
        update=UpdateContainer(records, zones, shares, growth),
        exec_sync=ExecSync(records, zones),
    )
    pod_zones = PodZones(config, zones, images, shares)
    stop_sandbox = StopSandbox(records, changes, network, pod_zones, stop_container)
    remove_sandbox = RemoveSandbox(records, unfinished, stop_sandbox, remove_container)
    plan = PlanSandbox(config, images, network, host, paths)
    daemon = CriDaemon(
        config=config,
        records=records,
        zones=zones,
        follower=follower,
        host=host,
        images=images,
        network=network,
        events=Events(sandboxes, containers, time.time_ns),
        capacity=capacity,
        pod_cidr=PodCidr(network, config.cni),
        pods=PodVerbs(
            run=RunSandbox(records, capacity, network, pod_zones, plan, remove_sandbox),
            stop=stop_sandbox,
            remove=remove_sandbox,
            update=UpdateSandbox(records, shares, host, config),
        ),
        containers=container_verbs,
    )
    return daemon, Reconciler(records, unfinished, shares, remove_sandbox, remove_container)


async def adopt_records(records: PodRecords, images: Images, store: Database) -> None:
    """Adopt the stored records, with the names and images that they hold."""
    sandboxes, containers = await store.load()
    for sandbox in sandboxes:
        records.sandboxes.adopt(sandbox)
        records.sandbox_names.reserve(sandbox_name(sandbox.config.metadata), sandbox.id)
        _hold_kernel(images, sandbox)
    for container in containers:
        records.containers.adopt(container)
        name = container_name(container.config.metadata, container.sandbox_id)
        records.container_names.reserve(name, container.id)
        _hold_images(images, container)
    images.collect()
    log.info("records loaded", extra=fields(sandboxes=len(sandboxes), containers=len(containers)))


def _hold_kernel(images: Images, sandbox: Sandbox) -> None:
    """Hold the kernel image until the zone is gone, unless the zone is gone already."""
    if sandbox.phase in (SandboxPhase.STOPPED, SandboxPhase.REMOVING):
        return
    try:
        kernel.hold_kernel(images, sandbox.kernel, sandbox.id)
    except Missing as fault:
        log.error("a zone's kernel image is gone: %s", fault, extra=fields(sandbox=sandbox.id))


def _hold_images(images: Images, container: Container) -> None:
    """Hold a container's images.  A lost image is only logged: the zone has the images open in any case."""
    for image_id in container.images:
        try:
            images.hold(image_id, container.id)
        except Missing as fault:
            log.error("a container's image is gone: %s", fault, extra=fields(container=container.id))
