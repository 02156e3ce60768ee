"""What is done about a pull that failed: whether space would help, whether what came of a layer is kept."""

from __future__ import annotations

from daemonkit.host.disk_space import is_full
from images.errors import Corrupt, DiskFull, Oversized, Unpackable


def is_disk_full(error: BaseException) -> bool:
    """Whether an error is the fault for a full disk, or the system's."""
    return isinstance(error, DiskFull) or is_full(error)


def is_resumable(error: BaseException) -> bool:
    """Whether what came of a layer before the error may be the beginning of a sound one."""
    return not isinstance(error, Corrupt | Unpackable | Oversized) and not is_disk_full(error)
