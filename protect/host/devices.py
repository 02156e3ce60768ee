"""Finds out which of the host's devices that the operator has named are there."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path

PCI = Path("/sys/bus/pci/devices")
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")  # domain:bus:device.function


def is_pci(place: str) -> bool:
    """Whether a device's place is a PCI address."""
    return bool(_ADDRESS.fullmatch(place))


def is_place(text: str) -> bool:
    """Whether a text is a PCI address or a normalized path below /dev."""
    return bool(_ADDRESS.fullmatch(text)) or (
        text.startswith("/dev/") and "\0" not in text and ".." not in text.split("/")
    )


def present(devices: Mapping[str, str], pci: Path = PCI) -> frozenset[str]:
    """The names of the devices that are there now."""
    return frozenset(name for name, place in devices.items() if _is_there(place, pci))


def _is_there(place: str, pci: Path) -> bool:
    try:
        if not place.startswith("/"):
            return (pci / place).exists()
        mode = Path(place).stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
