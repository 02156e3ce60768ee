"""Directories for container logs: the kubelet makes and removes its own; other callers may leave it to us."""

from __future__ import annotations

from pathlib import Path

from daemonkit.faults import Invalid


def make(directory: str) -> None:
    """Make ``directory`` and its parents (0755); "" makes none."""
    if not directory:
        return
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Invalid("make log directory", directory, error.strerror or str(error)) from None
