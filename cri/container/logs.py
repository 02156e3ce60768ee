"""Directories for container logs: the kubelet makes and removes its own; other callers may leave it to us."""

from __future__ import annotations

from pathlib import Path

from daemonkit.disk_space import is_full
from daemonkit.faults import Exhausted, Invalid

_MAKE = "make log directory"


def make(directory: str) -> None:
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
