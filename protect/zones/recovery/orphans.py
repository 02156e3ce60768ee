"""Orphans: domains without a record.  protect.v1 calls an orphan ``Stranger``.

Orphans are listed, and on request adopted or removed if they carry our mark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from uuid import UUID

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exists, Missing, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete
from protect.model.ports import ZoneVolumes
from protect.model.process import AgentHello
from protect.model.toolstack import DomainInfo, DomainState, Toolstack
from protect.model.zone import Zone
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.state.zone_dirs import ZoneDirs
from protect.zones.capacity.host_memory import zone_promise
from protect.zones.recovery import mark

log = logging.getLogger(__name__)

_FOREIGN = "it carries no mark of xenpod's"


@dataclass(frozen=True, slots=True)
class Orphan:
    """A domain without a record; ``zone``: the domain's zone by its mark; None: no mark."""

    domain: DomainInfo
    zone: Zone | None


@dataclass(frozen=True, slots=True)
class Orphans:
    """Lists, adopts and removes domains without a record."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    volumes: ZoneVolumes
    dirs: ZoneDirs

    async def listed(self) -> list[Orphan]:
        """All domains without a zone, with their marks."""
        return [
            Orphan(domain, mark.zone_of(domain))
            for domain in unknown(self.registry, await self.toolstack.list())
        ]

    async def adopt(self, uuid: UUID) -> tuple[ZoneRuntime, DomainInfo]:
        """Make a zone of an orphan with our mark.  Returns the zone, not connected yet, and its domain.

        All containers end.  Missing.  Refused: no mark, or the domain has ended.  Exists: the id is taken.
        """
        orphan = await self._marked("adopt zone", uuid)
        assert orphan.zone is not None
        if orphan.domain.state is DomainState.SHUTDOWN:
            raise Refused("adopt zone", str(uuid), "its domain has ended", "remove it")
        runtime = self._admit(orphan.zone)
        checkpoint("zone-adopt.recorded")
        self.volumes.resume(runtime.id)
        log.warning("orphan adopted", extra=fields(zone=runtime.id, domain=orphan.domain.id))
        return runtime, orphan.domain

    def _admit(self, zone: Zone) -> ZoneRuntime:
        """Register and record the zone, all or nothing."""
        if zone.id in self.registry.zones:
            raise Exists(
                "adopt zone", zone.id, "there is a zone of that id", "destroy it, or remove the domain"
            )
        runtime = self.registry.add_zone(zone)
        try:
            self.registry.put_zone(runtime, zone)
        except BaseException:
            del self.registry.zones[zone.id]
            raise
        self.ledger.adopt(zone.id, zone_promise(self.toolstack, zone.spec), zone.spec.reservations)
        return runtime

    async def empty(self, runtime: ZoneRuntime, hello: AgentHello) -> None:
        """At an adopted zone's first connection, end all processes in it, then record the agent's greeting.

        The workloads are unknown, and their callers create them again: no workload may run twice.  After a
        kill the next daemon repeats this.
        """
        untrusted = await runtime.client.list_processes()
        for process in untrusted.processes:
            if not process.name.exec_id:
                await runtime.client.delete_container(process.name.container_id, early=True)
        checkpoint("zone-adopt.emptied")
        for workload_id in self.volumes.users(runtime.id):
            await self.volumes.detach(runtime.id, workload_id)
        domain = runtime.zone.domain_id
        for vdev in await self.toolstack.disks(domain):
            await self.toolstack.detach_disk(domain, vdev)
        self.dirs.clear(runtime.id)
        checkpoint("zone-adopt.detached")
        told = replace(
            runtime.zone,
            boot_id=hello.boot_id.hex(),
            agent_version=hello.agent_version,
            file_volumes=hello.file_volumes,
            anonymous_volumes=hello.anonymous_volumes,
        )
        self.registry.put_zone(runtime, told)
        checkpoint("zone-adopt.connected")

    async def remove(self, uuid: UUID) -> None:
        """End an orphan with our mark, and free the rest of its zone.  Missing.  Refused: no mark.

        The removal is carried to its end even if the caller goes away.  After a kill, a second call removes
        the rest.
        """
        await complete(self._remove(await self._marked("remove zone", uuid)))

    async def _remove(self, orphan: Orphan) -> None:
        await self.toolstack.destroy(orphan.domain.id)
        checkpoint("orphan-remove.domain-destroyed")
        zone = orphan.zone
        if zone is not None and zone.id not in self.registry.zones:  # else the files belong to another zone
            await self.volumes.close(zone.id)
            checkpoint("orphan-remove.volumes-removed")
            self.dirs.clear(zone.id)
        log.warning("orphan removed", extra=fields(domain=orphan.domain.id, name=orphan.domain.name))

    async def _marked(self, operation: str, uuid: UUID) -> Orphan:
        """The orphan with this uuid and our mark.  Missing.  Refused: no mark."""
        zone = next((one for one in self.registry.zones.values() if one.zone.uuid == uuid), None)
        if zone is not None:
            raise Refused(operation, str(uuid), f"it is the domain of zone {zone.id}", "destroy the zone")
        found = next((one for one in await self.listed() if one.domain.uuid == uuid), None)
        if found is None:
            raise Missing(
                operation, str(uuid), "there is no such domain", "see `protect zone list --strangers`"
            )
        if found.zone is None:
            raise Refused(operation, str(uuid), _FOREIGN, "it is not xenpod's to touch: `xl destroy` ends it")
        return found


def unknown(registry: Registry, domains: Iterable[DomainInfo]) -> list[DomainInfo]:
    """Domains without a zone."""
    known = {runtime.zone.uuid for runtime in registry.zones.values()}
    return [domain for domain in domains if domain.uuid not in known]
