"""Network interfaces of a domain, by the kernel's backend (netback)."""

from __future__ import annotations

from dataclasses import dataclass

from xenbind.context import Context, struct
from xenbind.raw import CData, ffi, lib, text


@dataclass(frozen=True, slots=True)
class Nic:
    """``backend`` is its path in xenstore; the host's end is called ``vif<domid>.<devid>``."""

    devid: int
    backend: str


def nics(context: Context, domid: int) -> list[Nic]:
    """The domain's present interfaces, sorted by devid."""
    count = ffi.new("int *")
    found = lib.libxl_device_nic_list(context.ctx, domid, count)
    context.take_log()
    if found == ffi.NULL:
        return []
    try:
        listed = [_nic(context, domid, found + number) for number in range(count[0])]
    finally:
        lib.libxl_device_nic_list_free(found, count[0])
    return sorted(listed, key=lambda nic: nic.devid)


def _nic(context: Context, domid: int, found: CData) -> Nic:
    with struct("libxl_nicinfo") as info:
        subject = f"{found.devid} of domain {domid}"
        context.call("libxl_device_nic_getinfo", domid, found, info, subject=subject)
        return Nic(info.devid, text(info.backend))
