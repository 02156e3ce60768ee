"""Chooses a zone's virtualisation mode, by what is asked for and what the host can do."""

from __future__ import annotations

from enum import Enum

from daemonkit.faults import Refused
from protect.model.toolstack import Capabilities, Mode


class WantedMode(Enum):
    """The mode that a configuration or a request asks for; AUTO: PVH if the host can run it, else PV."""

    PV = "pv"
    PVH = "pvh"
    AUTO = "auto"


def choose(wanted: WantedMode, capabilities: Capabilities) -> Mode:
    """Choose a zone's mode.  AUTO chooses PVH only with hardware-assisted paging: PV is faster without."""
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
