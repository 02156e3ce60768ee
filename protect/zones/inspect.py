"""ZoneFacts and ResizeZone: asks a running zone about itself, and explains that its size is fixed."""

from __future__ import annotations

from daemonkit.faults import Refused
from protect.model.process import ZoneFacts
from protect.state.manager import ZoneManager

_MIB = 1 << 20
_LATER = "a running zone's size is fixed; a new pod gets the new one"


async def facts(manager: ZoneManager, zone_id: str) -> ZoneFacts:
    runtime = manager.zone("ask zone", zone_id)
    return await runtime.agent.facts(runtime.zone.agent_version)


def resize(manager: ZoneManager, zone_id: str, memory_bytes: int, vcpus: int) -> list[str]:
    """A sentence for each requested size (0: none) that was not granted.

    A zone that is larger than asked for keeps its size: everything asked for fits in it.
    """
    runtime = manager.zone("resize zone", zone_id)
    if not runtime.running:
        raise Refused("resize zone", zone_id, runtime.end.cause or f"it is {runtime.zone.state.value}")
    spec = runtime.zone.spec
    not_done = []
    if memory_bytes > spec.memory_bytes:
        wanted, have = -(-memory_bytes // _MIB), spec.memory_bytes // _MIB
        not_done.append(f"memory: {wanted} MiB wanted, the zone has {have} MiB ({_LATER})")
    if vcpus > spec.vcpus:
        not_done.append(f"vCPUs: {vcpus} wanted, the zone has {spec.vcpus} ({_LATER})")
    return not_done
