"""ReopenContainerLog."""

from __future__ import annotations

from cri.runtime import Runtime
from daemonkit.faults import Refused


async def reopen(runtime: Runtime, wanted: str) -> None:
    """Continue the log in a new file after rotation; Refused if the container has ended."""
    container = runtime.containers.find(wanted)
    if not container.live:
        raise Refused("reopen log of", container.id, f"it is {container.phase.value}")
    await runtime.zones.reopen_log(container.id)
