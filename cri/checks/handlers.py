"""Checks the configured runtime handlers against protectd's profiles and this host's capabilities."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from cri.config import HandlerConfig, HandlerMode, Requirement, RequirementKind, version
from daemonkit.convert import WrongKey
from xenpod_proto.protect.v1 import protect_pb2 as pb

MODES: Mapping[HandlerMode, pb.ZoneMode.ValueType] = {
    HandlerMode.PROFILE: pb.ZONE_MODE_UNSPECIFIED,
    HandlerMode.PV: pb.ZONE_MODE_PV,
    HandlerMode.PVH: pb.ZONE_MODE_PVH,
    HandlerMode.AUTO: pb.ZONE_MODE_AUTO,
}
_MIB = 1 << 20


def trouble(handler: HandlerConfig, host: pb.InfoResponse) -> WrongKey | None:
    """The handler's first key that does not fit protectd's profile, and why; None if all fit."""
    if handler.profile not in host.profiles:
        known = ", ".join(sorted(host.profiles))
        return WrongKey("profile", f"protectd has no profile {handler.profile!r} (there are: {known})")
    bounds = _bounds(handler, host)
    return _size_trouble(handler, bounds) if bounds else None


def unmet(handler: HandlerConfig, host: pb.InfoResponse) -> str:
    """The handler's requirements that this host does not meet, for people; "" if all are met.

    A handler's mode also requires hypervisor features.
    """
    if not host.HasField("capabilities"):
        # An older protectd would ignore the mode, too.
        return "protectd is older, and does not say what this host can" if handler.asks_host else ""
    lacking = (
        _lacking(handler, host.capabilities),
        _mode_lacking(handler, host),
        _label_lacking(handler, host),
        _rates_lacking(handler, host.capabilities),
    )
    return "; ".join(itertools.chain.from_iterable(lacking))


def zone_mode(handler: HandlerConfig, host: pb.InfoResponse) -> pb.ZoneMode.ValueType:
    """The mode of the handler's zones on this host, PV or PVH; UNSPECIFIED if protectd does not say."""
    wanted = _wanted_mode(handler, host)
    if wanted != pb.ZONE_MODE_AUTO:
        return wanted
    return pb.ZONE_MODE_PV if _pvh_lacks(handler, host.capabilities) else pb.ZONE_MODE_PVH


def fallback(handler: HandlerConfig, host: pb.InfoResponse) -> str:
    """Why the handler's zones are PV although PVH is preferred, for people; "" if they are not."""
    if _wanted_mode(handler, host) != pb.ZONE_MODE_AUTO:
        return ""
    why = _pvh_lacks(handler, host.capabilities)
    return f"mode auto gives pv zones, as this host lacks {why}" if why else ""


def _pvh_lacks(handler: HandlerConfig, can: pb.HostCapabilities) -> str:
    """Uses protectd's rule; a kernel from an image is unknown before a zone boots it."""
    if not can.hvm:
        return "hvm (VT-x or AMD-V)"
    if not can.hap:
        return "hap (EPT or NPT)"
    own = pb.ZONE_MODE_PVH in can.kernel_lacks and not handler.kernel
    return "a kernel for zones that boots as pvh (CONFIG_PVH)" if own else ""


def mode_name(mode: pb.ZoneMode.ValueType) -> str:
    """``"pv"`` or ``"pvh"``."""
    return pb.ZoneMode.Name(mode).removeprefix("ZONE_MODE_").lower()


def _bounds(handler: HandlerConfig, host: pb.InfoResponse) -> pb.ProfileBounds | None:
    """The bounds of the handler's profile; None if protectd does not say."""
    return next((one for one in host.profile_bounds if one.name == handler.profile), None)


def _wanted_mode(handler: HandlerConfig, host: pb.InfoResponse) -> pb.ZoneMode.ValueType:
    bounds = _bounds(handler, host)
    return MODES[handler.mode] or (bounds.mode if bounds else pb.ZONE_MODE_UNSPECIFIED)


def _lacking(handler: HandlerConfig, can: pb.HostCapabilities) -> Iterator[str]:
    for text, one in zip(handler.requires, handler.requirements, strict=True):
        if why := _why_not(one, can):
            yield f"requires {text}, and {why}"
    for name in handler.devices:
        if why := _why_not(Requirement(RequirementKind.DEVICE, name), can):
            yield f"its zones have the device {name}, and {why}"


def _why_not(one: Requirement, can: pb.HostCapabilities) -> str:
    match one.kind:
        case RequirementKind.FEATURE:
            has = {"hvm": can.hvm, "hap": can.hap, "iommu": can.iommu}[one.value]
            return "" if has else "this host has none"
        case RequirementKind.XEN:
            return _too_old(one.value, can.hypervisor_version)
        case RequirementKind.DEVICE if one.value in can.absent_devices:
            return "what [host.devices] of protectd.toml has under that name is not there"
        case RequirementKind.DEVICE:
            return "" if one.value in can.devices else "[host.devices] of protectd.toml has none of that name"
        case RequirementKind.LABEL:
            return "" if one.value in can.labels else "[host] labels of protectd.toml lacks it"


def _too_old(least: str, has: str) -> str:
    if not has:
        return "this host runs no Xen"
    return "" if version(has) >= version(least) else f"this host runs {has}"


def _mode_lacking(handler: HandlerConfig, host: pb.InfoResponse) -> Iterator[str]:
    can, mode = host.capabilities, zone_mode(handler, host)
    if mode == pb.ZONE_MODE_PVH and not can.hvm:
        yield "its zones are pvh, which requires hvm, and this host has none"
    if mode == pb.ZONE_MODE_PV and not can.pv:
        yield "its zones are pv, and this host's hypervisor runs none"
    if mode in can.kernel_lacks and not handler.kernel:
        yield f"its zones are {mode_name(mode)}, and protectd's kernel for zones does not boot so"


def _label_lacking(handler: HandlerConfig, host: pb.InfoResponse) -> Iterator[str]:
    if not handler.seclabel:
        return
    if not host.capabilities.flask:
        yield (
            f"its zones have the label {handler.seclabel}, and this host's hypervisor has no FLASK"
            " (a Xen with XSM, booted with xsm=flask)"
        )
    elif handler.seclabel in host.unknown_seclabels:
        yield f"its zones have the label {handler.seclabel}, which the hypervisor's policy lacks"


def _rates_lacking(handler: HandlerConfig, can: pb.HostCapabilities) -> Iterator[str]:
    if handler.has_disk_rates and not can.disk_rates:
        yield "its zones' disks have rates, which this host's kernel cannot hold"


def _size_trouble(handler: HandlerConfig, bounds: pb.ProfileBounds) -> WrongKey | None:
    low, high = bounds.memory_min_bytes, bounds.memory_max_bytes
    for key in ("memory", "memory_min", "memory_max"):
        if (size := getattr(handler, key)) and not low <= size <= high:
            cause = (
                f"{key} of {size // _MIB} MiB is not between the {low // _MIB} and {high // _MIB} MiB of its"
                " profile"
            )
            return WrongKey(key, cause)
    for key in ("vcpus", "vcpus_max"):
        if (count := getattr(handler, key)) > bounds.vcpus_max:
            return WrongKey(key, f"{count} vcpus are more than the {bounds.vcpus_max} of its profile")
    return _usual_trouble(handler, bounds)


def _usual_trouble(handler: HandlerConfig, bounds: pb.ProfileBounds) -> WrongKey | None:
    """The trouble with the size of pods without limits: the handler's size, or else the profile's."""
    memory = 0 if handler.memory else bounds.memory_bytes
    if memory and not handler.memory_min <= memory <= (handler.memory_max or memory):
        cause = f"the {memory // _MIB} MiB of its profile are not within memory_min and memory_max: set it"
        return WrongKey("memory", cause)
    if not handler.vcpus and 0 < handler.vcpus_max < bounds.vcpus:
        return WrongKey("vcpus", f"the {bounds.vcpus} of its profile are more than vcpus_max: set it")
    return None
