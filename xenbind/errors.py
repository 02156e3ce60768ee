"""Exceptions of the binding: errors of libxl by code, of xenstore and vchan by errno."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from xenbind import raw


@cache
def _names() -> Mapping[int, str]:
    return raw.names("libxl_error", "ERROR_")


class XenError(Exception):
    """A libxl call failed.  ``detail`` is libxl's log of the call, the cause first."""

    def __init__(self, call: str, code: int, subject: str = "", detail: str = "") -> None:
        self.call = call
        self.code = code
        self.name = _names().get(code, "UNKNOWN")
        self.subject = subject
        self.detail = detail.strip()
        text = f"{call} {subject}".rstrip() + f": ERROR_{self.name} ({code})"
        super().__init__(f"{text}: {'; '.join(self.detail.splitlines())}" if self.detail else text)


class DomainNotFound(XenError):
    """No matching domain."""


class DeviceExists(XenError):
    """The domain already has the device."""


class DeviceNotFound(XenError):
    """The domain does not have the device."""


class TimedOut(XenError):
    """A guest or a backend did not act in time."""


class InvalidConfig(XenError):
    """libxl rejects an argument."""


BY_NAME: Mapping[str, type[XenError]] = {
    "INVAL": InvalidConfig,
    "GUEST_TIMEDOUT": TimedOut,
    "TIMEDOUT": TimedOut,
    "DEVICE_EXISTS": DeviceExists,
    "DOMAIN_NOTFOUND": DomainNotFound,
    "NOTFOUND": DeviceNotFound,
}
"""Specific classes, by the name of the libxl_error; all other errors are XenError."""


def of(call: str, code: int, subject: str = "", detail: str = "") -> XenError:
    """The error for ``code``, a libxl_error."""
    return BY_NAME.get(_names().get(code, ""), XenError)(call, code, subject, detail)


class StoreError(OSError):
    """A xenstore call failed; ``errno`` says why, ``filename`` is the path."""


class VchanError(OSError):
    """A vchan could not be connected, or broke."""


class RingsTooLarge(VchanError):
    """The guest serves a vchan with larger rings than allowed."""
