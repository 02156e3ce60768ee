"""The host as the hypervisor sees it."""

from __future__ import annotations

from dataclasses import dataclass

from xenbind import errors
from xenbind.context import Context, struct
from xenbind.raw import ffi, lib, text


@dataclass(frozen=True, slots=True)
class PhysInfo:
    """Memory in bytes; ``pvh`` says whether hardware-assisted guests can be made."""

    total_bytes: int
    free_bytes: int
    cpus: int
    version: str
    pv: bool
    pvh: bool


def physinfo(context: Context) -> PhysInfo:
    """Ask the hypervisor.  Memory still being scrubbed counts as free, as it is for a new domain."""
    version = lib.libxl_get_version_info(context.ctx)
    if version == ffi.NULL:
        raise errors.of("libxl_get_version_info", lib.ERROR_FAIL, detail=context.take_log())
    with struct("libxl_physinfo") as info:
        context.call("libxl_get_physinfo", info)
        release = f"{version.xen_version_major}.{version.xen_version_minor}{text(version.xen_version_extra)}"
        return PhysInfo(
            total_bytes=info.total_pages * version.pagesize,
            free_bytes=(info.free_pages + info.scrub_pages) * version.pagesize,
            cpus=info.nr_cpus,
            version=f"Xen {release}",
            pv=info.cap_pv,
            pvh=info.cap_hvm,
        )
