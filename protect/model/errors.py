"""Faults of the zone manager that callers distinguish."""

from __future__ import annotations

from daemonkit.faults import Broken, Refused, Unreachable


class ToolstackError(Broken):
    """The hypervisor refused or failed; the cause quotes it."""


class DomainGone(Refused):
    """The domain ended."""


class CannotStart(Refused):
    """A zone's runtime says that a container's configuration cannot be run; nothing is left of it there."""


class LinkDown(Unreachable):
    """The zone's channel is not connected, or broke while the call was open."""


class ProtocolViolation(Broken):
    """The zone's agent broke the channel's rules; it has been cut off."""
