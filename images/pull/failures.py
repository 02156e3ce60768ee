"""Classifies failures of a pull: is the disk full, and may a partial layer be kept."""

from __future__ import annotations

from daemonkit.host.disk_space import is_full
from images.image_errors import Corrupt, DiskFull, Oversized, Unpackable


def is_disk_full(error: BaseException) -> bool:
    """Whether an error is the fault for a full disk, or the system's."""
    return isinstance(error, DiskFull) or is_full(error)


def is_resumable(error: BaseException) -> bool:
    """Whether a partial layer from before the error may be the beginning of a sound layer."""
    return not isinstance(error, Corrupt | Unpackable | Oversized) and not is_disk_full(error)
