"""Identifies the present boot of the host."""

from __future__ import annotations

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The kernel's identifier of this boot; changes with each reboot (random(4))."""
    return _BOOT_ID.read_text().strip()
