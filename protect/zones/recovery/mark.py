"""The mark of a zone's domain: enough facts to adopt a zone without its record.

The guest may read the mark: no files of the host are named.  An adopted zone lacks all facts not in the mark.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace

from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.model import checks
from protect.model.toolstack import MARK_LIMIT, DomainInfo, Toolstack
from protect.model.zone import Zone, ZoneSpec, ZoneState, domain_name
from protect.state import records

log = logging.getLogger(__name__)

_NAME_LIMIT = 64


def name_of(zone: Zone) -> str:
    """The name of a zone's domain."""
    return domain_name(zone.spec.name or zone.spec.id, zone.uuid)


def of_zone(zone: Zone) -> str:
    """The mark of a zone's domain."""
    spec = zone.spec
    kept = ZoneSpec(
        id=spec.id,
        name=spec.name[:_NAME_LIMIT],
        hostname=spec.hostname,
        profile=spec.profile,
        memory_bytes=spec.memory_bytes,
        vcpus=spec.vcpus,
        memory_max_bytes=spec.memory_max_bytes,
        vcpus_max=spec.vcpus_max,
        hotplug_max_bytes=spec.hotplug_max_bytes,
        mode=spec.mode,
        interfaces=spec.interfaces,
        id_mapping=spec.id_mapping,
        shares=spec.shares,
        seclabel=spec.seclabel,
    )
    body = records.of_zone(Zone(kept, zone.uuid, zone.state, zone.created_at_ns))
    text = json.dumps(body, separators=(",", ":"))
    # A long label can exceed the limit; the id alone still shows that the zone is ours.
    return text if len(text) <= MARK_LIMIT else json.dumps({"id": spec.id})


def zone_of(domain: DomainInfo) -> Zone | None:
    """The zone of a domain by its mark; None: no readable mark."""
    if not domain.mark or len(domain.mark) > MARK_LIMIT:
        return None
    try:
        zone = records.zone(json.loads(domain.mark))
        checks.identifier("read mark", "zone", zone.id)
    except (Fault, ValueError, TypeError) as error:
        log.warning("domain %s has a mark that cannot be read: %s", domain.name or domain.id, error)
        return None
    if zone.uuid != domain.uuid:
        return None
    vcpus = domain.vcpus_online or zone.spec.vcpus
    size = replace(zone.spec, memory_bytes=domain.memory_bytes, vcpus=vcpus)
    return Zone(size, zone.uuid, ZoneState.RUNNING, zone.created_at_ns, domain_id=domain.id)


async def restore(toolstack: Toolstack, zone: Zone) -> None:
    """Mark the zone's domain as ours again.  A failure is logged: the periodic reconcile tries again."""
    try:
        await toolstack.claim(zone.uuid, name_of(zone), of_zone(zone))
    except Fault as fault:
        log.error("a domain could not be marked: %s", fault, extra=fields(zone=zone.id))
