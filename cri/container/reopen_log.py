"""ReopenContainerLog."""

from __future__ import annotations

from cri.state.container import Container
from cri.state.records import Records
from cri.zones.client import Zones
from daemonkit.faults import Refused


async def reopen_log(containers: Records[Container], zones: Zones, wanted: str) -> None:
    """Continue the log in a new file after rotation; Refused if the container has ended."""
    container = containers.find(wanted)
    if not container.live:
        raise Refused("reopen log of", container.id, f"it is {container.phase.value}")
    await zones.reopen_log(container.id)
