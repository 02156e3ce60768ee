"""Container logs: their directories, and ReopenContainerLog.

The kubelet makes and removes its own directories; other callers may leave that to us.
"""

from __future__ import annotations

from pathlib import Path

from cri.runtime import Runtime
from daemonkit.disk_space import is_full
from daemonkit.faults import Exhausted, Invalid, Refused

_MAKE = "make log directory"


def make_directory(directory: str) -> None:
    """Make ``directory`` and its parents (0755); "" makes none."""
    if not directory:
        return
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        cause = error.strerror or str(error)
        if is_full(error):
            raise Exhausted(_MAKE, directory, cause, "free some space") from None
        raise Invalid(_MAKE, directory, cause) from None


async def reopen(runtime: Runtime, wanted: str) -> None:
    """Write on to a new file, after a log was rotated; Refused when the container has ended."""
    container = runtime.containers.find(wanted)
    if not container.live:
        raise Refused("reopen log of", container.id, f"it is {container.phase.value}")
    await runtime.zones.reopen_log(container.id)
