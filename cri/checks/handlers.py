"""Checks of the configured runtime handlers against what protectd has."""

from __future__ import annotations

from cri.config import HandlerConfig
from daemonkit.convert import WrongKey
from xenpod_proto.protect.v1 import protect_pb2 as pb

_MIB = 1 << 20


def trouble(handler: HandlerConfig, host: pb.InfoResponse) -> WrongKey | None:
    """Why no pod can have this handler, and by which of its keys; None when pods can."""
    if handler.profile not in host.profiles:
        known = ", ".join(sorted(host.profiles))
        return WrongKey("profile", f"protectd has no profile {handler.profile!r} (there are: {known})")
    for bounds in host.profile_bounds:
        if bounds.name == handler.profile:
            return _size_trouble(handler, bounds)
    return None


def _size_trouble(handler: HandlerConfig, bounds: pb.ProfileBounds) -> WrongKey | None:
    low, high = bounds.memory_min_bytes, bounds.memory_max_bytes
    if handler.memory and not low <= handler.memory <= high:
        cause = (
            f"memory of {handler.memory // _MIB} MiB is not between the {low // _MIB} and {high // _MIB} MiB"
            " of its profile"
        )
        return WrongKey("memory", cause)
    if handler.vcpus > bounds.vcpus_max:
        return WrongKey("vcpus", f"{handler.vcpus} vcpus are more than the {bounds.vcpus_max} of its profile")
    return None
