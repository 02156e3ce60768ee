"""Which virtualisation mode a zone gets: what is asked for, and what the host can."""

from __future__ import annotations

from enum import Enum

from daemonkit.faults import Refused
from protect.model.toolstack import Capabilities, Mode


class WantedMode(Enum):
    """What a configuration or a request may ask for; AUTO: PVH where the host can, else PV."""

    PV = "pv"
    PVH = "pvh"
    AUTO = "auto"


def choose(wanted: WantedMode, capabilities: Capabilities) -> Mode:
    """The mode of a zone.  AUTO wants hardware-assisted paging too: without it PVH is slower than PV."""
    if wanted is WantedMode.AUTO:
        return Mode.PVH if capabilities.hvm and capabilities.hap else Mode.PV
    return Mode(wanted.value)


def refuse_impossible_mode(operation: str, name: str, mode: Mode, capabilities: Capabilities) -> None:
    """Refused for a mode that the host cannot run."""
    if mode is Mode.PVH and not capabilities.hvm:
        hint = "use pv or auto, or enable virtualisation in the firmware"
        raise Refused(operation, name, "this host cannot run pvh guests", hint)
    if mode is Mode.PV and not capabilities.pv:
        raise Refused(operation, name, "this host cannot run pv guests", "use pvh or auto")
