"""Domains without a record: lists them, and on request adopts or removes domains with our mark."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from uuid import UUID

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exists, Missing, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete
from protect.model.process import AgentHello
from protect.model.toolstack import DomainInfo, DomainState
from protect.model.zone import Zone
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime
from protect.zones.capacity.host_memory import zone_promise
from protect.zones.recovery import mark

log = logging.getLogger(__name__)

_FOREIGN = "it carries no mark of xenpod's"


@dataclass(frozen=True, slots=True)
class Stranger:
    """A domain without a record; ``zone``: the domain's zone by its mark; None: no mark."""

    domain: DomainInfo
    zone: Zone | None


async def strangers(manager: ZoneManager) -> list[Stranger]:
    """All domains without a zone, with their marks."""
    return [
        Stranger(domain, mark.zone_of(domain)) for domain in unknown(manager, await manager.toolstack.list())
    ]


def unknown(manager: ZoneManager, domains: Iterable[DomainInfo]) -> list[DomainInfo]:
    """Domains without a zone."""
    known = {runtime.zone.uuid for runtime in manager.zones.values()}
    return [domain for domain in domains if domain.uuid not in known]


async def adopt(manager: ZoneManager, uuid: UUID) -> tuple[ZoneRuntime, DomainInfo]:
    """Make a zone of a stranger with our mark.  Returns the zone, not connected yet, and its domain.

    All containers end.  Missing.  Refused: no mark, or the domain has ended.  Exists: the id is taken.
    """
    stranger = await _marked(manager, "adopt zone", uuid)
    assert stranger.zone is not None
    if stranger.domain.state is DomainState.SHUTDOWN:
        raise Refused("adopt zone", str(uuid), "its domain has ended", "remove it")
    runtime = _admit(manager, stranger.zone)
    checkpoint("zone-adopt.recorded")
    manager.volumes.resume(runtime.id)
    log.warning("stranger adopted", extra=fields(zone=runtime.id, domain=stranger.domain.id))
    return runtime, stranger.domain


def _admit(manager: ZoneManager, zone: Zone) -> ZoneRuntime:
    """Register and record the zone, all or nothing."""
    if zone.id in manager.zones:
        raise Exists("adopt zone", zone.id, "there is a zone of that id", "destroy it, or remove the domain")
    runtime = manager.add_zone(zone)
    try:
        manager.put_zone(runtime, zone)
    except BaseException:
        del manager.zones[zone.id]
        raise
    manager.ledger.adopt(zone.id, zone_promise(manager.toolstack, zone.spec), zone.spec.reservations)
    return runtime


async def empty(manager: ZoneManager, runtime: ZoneRuntime, hello: AgentHello) -> None:
    """At an adopted zone's first connection, end all processes in it, then record the agent's greeting.

    The workloads are unknown, and their callers create them again: no workload may run twice.  After a kill
    the next daemon repeats this.
    """
    untrusted = await runtime.client.list_processes()
    for process in untrusted.processes:
        if not process.name.exec_id:
            await runtime.client.delete_container(process.name.container_id, early=True)
    checkpoint("zone-adopt.emptied")
    for workload_id in manager.volumes.users(runtime.id):
        await manager.volumes.detach(runtime.id, workload_id)
    domain = runtime.zone.domain_id
    for vdev in await manager.toolstack.disks(domain):
        await manager.toolstack.detach_disk(domain, vdev)
    manager.clear_zone_dir(runtime.id)
    checkpoint("zone-adopt.detached")
    told = replace(
        runtime.zone,
        boot_id=hello.boot_id.hex(),
        agent_version=hello.agent_version,
        file_volumes=hello.file_volumes,
    )
    manager.put_zone(runtime, told)
    checkpoint("zone-adopt.connected")


async def remove(manager: ZoneManager, uuid: UUID) -> None:
    """End a stranger with our mark, and free the rest of its zone.  Missing.  Refused: no mark.

    The removal is carried to its end even if the caller goes away.  After a kill, a second call removes the
    rest.
    """
    await complete(_remove(manager, await _marked(manager, "remove zone", uuid)))


async def _remove(manager: ZoneManager, stranger: Stranger) -> None:
    await manager.toolstack.destroy(stranger.domain.id)
    checkpoint("stranger-remove.domain-destroyed")
    zone = stranger.zone
    if zone is not None and zone.id not in manager.zones:  # else the files belong to another zone
        await manager.volumes.close(zone.id)
        checkpoint("stranger-remove.volumes-removed")
        manager.clear_zone_dir(zone.id)
    log.warning("stranger removed", extra=fields(domain=stranger.domain.id, name=stranger.domain.name))


async def _marked(manager: ZoneManager, operation: str, uuid: UUID) -> Stranger:
    """The stranger with this uuid and our mark.  Missing.  Refused: no mark."""
    zone = next((one for one in manager.zones.values() if one.zone.uuid == uuid), None)
    if zone is not None:
        raise Refused(operation, str(uuid), f"it is the domain of zone {zone.id}", "destroy the zone")
    found = next((one for one in await strangers(manager) if one.domain.uuid == uuid), None)
    if found is None:
        raise Missing(operation, str(uuid), "there is no such domain", "see `protect zone list --strangers`")
    if found.zone is None:
        raise Refused(operation, str(uuid), _FOREIGN, "it is not xenpod's to touch: `xl destroy` ends it")
    return found
