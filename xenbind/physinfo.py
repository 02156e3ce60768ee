"""The host as the hypervisor sees it."""

from __future__ import annotations

from dataclasses import dataclass

from xenbind import errors
from xenbind.context import Context, struct
from xenbind.raw import ffi, lib, text


@dataclass(frozen=True, slots=True)
class PhysInfo:
    """Memory in bytes; ``free_bytes`` excludes memory claimed for domains.

    ``release`` is "<major>.<minor>" of ``version``. ``hvm``: support for hardware-assisted guests; ``hap``:
    with hardware-assisted paging; ``iommu``: Xen uses an IOMMU (XEN_SYSCTL_PHYSCAP_directio).
    ``command_line``: Xen's own.
    """

    total_bytes: int
    free_bytes: int
    cpus: int
    numa_nodes: int
    version: str
    release: str
    pv: bool
    hvm: bool
    hap: bool
    iommu: bool
    command_line: str


def physinfo(context: Context) -> PhysInfo:
    """Ask the hypervisor.  Memory still being scrubbed counts as free: a new domain can use it."""
    version = lib.libxl_get_version_info(context.ctx)
    if version == ffi.NULL:
        raise errors.of("libxl_get_version_info", lib.ERROR_FAIL, detail=context.take_log())
    with struct("libxl_physinfo") as info:
        context.call("libxl_get_physinfo", info)
        release = f"{version.xen_version_major}.{version.xen_version_minor}"
        return PhysInfo(
            total_bytes=info.total_pages * version.pagesize,
            free_bytes=max(0, info.free_pages + info.scrub_pages - info.outstanding_pages) * version.pagesize,
            cpus=info.nr_cpus,
            numa_nodes=info.nr_nodes,
            version=f"Xen {release}{text(version.xen_version_extra)}",
            release=release,
            pv=info.cap_pv,
            hvm=info.cap_hvm,
            hap=info.cap_hap,
            iommu=info.cap_hvm_directio,
            command_line=text(version.commandline),
        )
