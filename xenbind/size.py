"""The size of a domain that runs, within what it was created for; and the pool of CPUs that it runs on."""

from __future__ import annotations

from xenbind.context import Context, struct
from xenbind.raw import ffi, lib


def set_memory(context: Context, domid: int, kib: int) -> None:
    """Tell the guest's balloon its target, and let the domain have no more from now on.

    InvalidConfig, or another XenError, for more than the domain was created for.
    """
    context.call("libxl_set_memory_target", domid, kib, 0, 1, subject=f"domain {domid}")


def set_vcpus(context: Context, domid: int, count: int, most: int) -> None:
    """Tell the guest that the first ``count`` of its ``most`` vCPUs are there.  It is the guest's to obey."""
    with struct("libxl_bitmap") as online:
        context.call("libxl_cpu_bitmap_alloc", online, most)
        for number in range(count):
            lib.libxl_bitmap_set(online, number)
        context.call("libxl_set_vcpuonline", domid, online, ffi.NULL, subject=f"domain {domid}")


def pool_id(context: Context, name: str) -> int:
    """The number of a pool of CPUs.  XenError when there is none of that name."""
    found = ffi.new("uint32_t *")
    context.call("libxl_name_to_cpupoolid", name.encode(), found, subject=f"cpupool {name}")
    return int(found[0])
