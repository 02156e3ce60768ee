"""Finds the present devices among those that the operator has named."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from protect.model.volume import PCI_ADDRESS

PCI = Path("/sys/bus/pci/devices")


def is_pci(place: str) -> bool:
    """Whether a device's place is a PCI address."""
    return bool(PCI_ADDRESS.fullmatch(place))


def is_place(text: str) -> bool:
    """Whether a text is a PCI address or a normalized path below /dev."""
    return bool(PCI_ADDRESS.fullmatch(text)) or (
        text.startswith("/dev/") and "\0" not in text and ".." not in text.split("/")
    )


def present(devices: Mapping[str, str], pci: Path = PCI) -> frozenset[str]:
    """The names of the present devices."""
    return frozenset(name for name, place in devices.items() if _is_there(place, pci))


def _is_there(place: str, pci: Path) -> bool:
    try:
        if not place.startswith("/"):
            return (pci / place).exists()
        mode = Path(place).stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
