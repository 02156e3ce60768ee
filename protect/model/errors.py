"""Faults of the zone manager, for callers to distinguish."""

from __future__ import annotations

from daemonkit.faults import Broken, Refused, Unreachable


class ToolstackError(Broken):
    """The hypervisor refused or failed; the cause quotes it."""


class DomainGone(Refused):
    """The domain ended."""


class CannotStart(Refused):
    """The zone's runtime cannot run a container's configuration; nothing of the container is left."""


class LinkDown(Unreachable):
    """The zone's channel is not connected, or broke while the call was open."""


class ProtocolViolation(Broken):
    """The zone's agent broke the channel's rules and is cut off."""
