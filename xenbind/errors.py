"""What the binding raises: errors of libxl by code, of xenstore and vchan by errno."""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[int, str] = {
    -1: "NONSPECIFIC",
    -2: "VERSION",
    -3: "FAIL",
    -4: "NI",
    -5: "NOMEM",
    -6: "INVAL",
    -7: "BADFAIL",
    -8: "GUEST_TIMEDOUT",
    -9: "TIMEDOUT",
    -10: "NOPARAVIRT",
    -11: "NOT_READY",
    -12: "OSEVENT_REG_FAIL",
    -13: "BUFFERFULL",
    -14: "UNKNOWN_CHILD",
    -15: "LOCK_FAIL",
    -16: "JSON_CONFIG_EMPTY",
    -17: "DEVICE_EXISTS",
    -21: "DOMAIN_NOTFOUND",
    -22: "ABORTED",
    -23: "NOTFOUND",
    -24: "DOMAIN_DESTROYED",
    -25: "FEATURE_REMOVED",
}
"""libxl_error of _libxl_types.h, without those of migration, vNUMA and device models."""


class Unavailable(Exception):
    """xenbind cannot be used here: it is not built, or its libraries do not load."""


class XenError(Exception):
    """A libxl call failed.  ``detail`` is what libxl logged meanwhile, most telling line first."""

    def __init__(self, call: str, code: int, subject: str = "", detail: str = "") -> None:
        self.call = call
        self.code = code
        self.name = NAMES.get(code, "UNKNOWN")
        self.subject = subject
        self.detail = detail.strip()
        text = f"{call} {subject}".rstrip() + f": ERROR_{self.name} ({code})"
        super().__init__(f"{text}: {'; '.join(self.detail.splitlines())}" if self.detail else text)


class DomainNotFound(XenError):
    """No such domain."""


class DeviceExists(XenError):
    """The domain has such a device already."""


class DeviceNotFound(XenError):
    """The domain has no such device."""


class TimedOut(XenError):
    """A guest or a backend did not do its part in time."""


class InvalidConfig(XenError):
    """libxl does not accept what it was given."""


BY_CODE: Mapping[int, type[XenError]] = {
    -6: InvalidConfig,
    -8: TimedOut,
    -9: TimedOut,
    -17: DeviceExists,
    -21: DomainNotFound,
    -23: DeviceNotFound,
}


def of(call: str, code: int, subject: str = "", detail: str = "") -> XenError:
    """The error that stands for ``code``."""
    return BY_CODE.get(code, XenError)(call, code, subject, detail)


class StoreError(OSError):
    """A xenstore call failed; ``errno`` says why, ``filename`` is the path."""


class VchanError(OSError):
    """A vchan could not be connected, or broke."""
