"""Chooses a zone's virtualisation mode, and refuses features that the host lacks."""

from __future__ import annotations

from enum import Enum

from daemonkit.faults import Refused
from protect.model.domain.shares import DiskRates
from protect.model.toolstack import Capabilities, Mode

_BOOTED_BY = {Mode.PV: "CONFIG_XEN_PV", Mode.PVH: "CONFIG_XEN and CONFIG_PVH"}


class WantedMode(Enum):
    """Requested mode of a zone; AUTO: PVH if the host can run PVH, else PV."""

    PV = "pv"
    PVH = "pvh"
    AUTO = "auto"


def choose(wanted: WantedMode, capabilities: Capabilities, *, own_kernel: bool = True) -> Mode:
    """Choose a zone's mode; ``own_kernel``: the zone boots the toolstack's own kernel."""
    if wanted is WantedMode.AUTO:
        return Mode.PV if pvh_lacks(capabilities, own_kernel=own_kernel) else Mode.PVH
    return Mode(wanted.value)


def pvh_lacks(capabilities: Capabilities, *, own_kernel: bool = True) -> str:
    """Why AUTO is not PVH, for people; "" if AUTO is PVH.  Without hap PVH is slower than PV."""
    if not capabilities.hvm:
        return "this host lacks hvm (VT-x or AMD-V, which the firmware may have to enable)"
    if not capabilities.hap:
        return "this host lacks hap (EPT or NPT, without which pvh is slower than pv)"
    if own_kernel and Mode.PVH not in capabilities.kernel_modes:
        return f"the kernel of zones cannot boot so: {kernel_lacks(Mode.PVH)}"
    return ""


def kernel_lacks(mode: Mode) -> str:
    """Why a kernel cannot boot in a mode, for people."""
    return f"it was built without {_BOOTED_BY[mode]}"


def refuse_impossible_mode(operation: str, name: str, mode: Mode, capabilities: Capabilities) -> None:
    """Refused: the host cannot run the mode."""
    if mode is Mode.PVH and not capabilities.hvm:
        hint = "use pv or auto, or enable virtualisation in the firmware"
        raise Refused(operation, name, "this host cannot run pvh guests", hint)
    if mode is Mode.PV and not capabilities.pv:
        raise Refused(operation, name, "this host cannot run pv guests", "use pvh or auto")


def refuse_impossible_label(operation: str, name: str, seclabel: str, capabilities: Capabilities) -> None:
    """Refused: the hypervisor would not enforce the label.  libxl would create the domain and only warn."""
    if seclabel and not capabilities.flask:
        cause = f"it is to have the label {seclabel}, and this host's hypervisor has no FLASK"
        raise Refused(operation, name, cause, "boot a Xen with XSM by xsm=flask, with a policy")


def refuse_impossible_rates(operation: str, name: str, rates: DiskRates, *, possible: bool) -> None:
    """Refused: the host's kernel cannot limit rates of disks."""
    if rates and not possible:
        cause = "its disks are to have rates, which this host's kernel cannot hold"
        hint = "it takes control groups with an io or blkio controller (CONFIG_BLK_DEV_THROTTLING)"
        raise Refused(operation, name, cause, hint)
