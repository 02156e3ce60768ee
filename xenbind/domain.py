"""Domains: create, pause, unpause, destroy, list, inspect, resize."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from uuid import UUID

from xenbind import errors
from xenbind.context import Context, struct
from xenbind.raw import CData, ffi, lib, names, text


class Shutdown(Enum):
    """Why a domain ended by itself: the names of libxl_shutdown_reason."""

    UNKNOWN = "UNKNOWN"
    POWEROFF = "POWEROFF"
    REBOOT = "REBOOT"
    SUSPEND = "SUSPEND"
    CRASH = "CRASH"
    WATCHDOG = "WATCHDOG"
    SOFT_RESET = "SOFT_RESET"

    @classmethod
    def of(cls, code: int) -> Shutdown:
        """The reason for libxl's number; UNKNOWN for an unknown number."""
        return cls(_reasons().get(code, "UNKNOWN"))


@cache
def _reasons() -> Mapping[int, str]:
    return names("libxl_shutdown_reason", "LIBXL_SHUTDOWN_REASON_")


@dataclass(frozen=True, slots=True)
class Info:
    """A domain as libxl sees it; memory in KiB.  ``dying``: destroyed, but still referenced."""

    domid: int
    uuid: UUID
    name: str
    paused: bool
    shutdown: bool
    dying: bool
    shutdown_reason: Shutdown
    memory_kib: int
    memory_max_kib: int
    vcpus: int
    cpu_time_ns: int
    vcpus_online: int = 0


def create_domain(context: Context, config: Mapping[str, object]) -> int:
    """Create a domain, paused; returns its number.  ``config`` is libxl's JSON (libxl_domain_config).

    After a failure, a partly made domain is destroyed.
    """
    invalid = int(ffi.cast("uint32_t", lib.INVALID_DOMID))
    domid = ffi.new("uint32_t *", invalid)
    with struct("libxl_domain_config") as parsed:
        context.call("libxl_domain_config_from_json", parsed, json.dumps(config).encode())
        try:
            context.call("libxl_domain_create_new", parsed, domid, ffi.NULL, ffi.NULL)
        except errors.XenError:
            if domid[0] not in (invalid, 0):
                with suppress(errors.DomainNotFound):  # usually libxl has destroyed it already
                    destroy(context, domid[0])
            raise
    return int(domid[0])


def pause(context: Context, domid: int) -> None:
    """Stop all vCPUs of a domain until unpause().  Idempotent."""
    context.call("libxl_domain_pause", domid, ffi.NULL, subject=f"domain {domid}")


def unpause(context: Context, domid: int) -> None:
    """Let a domain run.  Idempotent."""
    context.call("libxl_domain_unpause", domid, ffi.NULL, subject=f"domain {domid}")


def destroy(context: Context, domid: int, uuid: UUID | None = None) -> None:
    """End a domain and free its resources.  DomainNotFound: no such domain.

    ``uuid``: only if it matches, because a new domain may have the number by now.
    """
    if uuid is not None and info(context, domid).uuid != uuid:
        subject = f"domain {domid}, {uuid}"
        raise errors.DomainNotFound("libxl_domain_destroy", lib.ERROR_DOMAIN_NOTFOUND, subject)
    context.call("libxl_domain_destroy", domid, ffi.NULL, subject=f"domain {domid}")


def domains(context: Context) -> list[Info]:
    """All domains, dom0 included."""
    count = ffi.new("int *")
    found = lib.libxl_list_domain(context.ctx, count)
    if found == ffi.NULL:
        context.check("libxl_list_domain", lib.ERROR_FAIL)
    try:
        return [_info(context, found[number]) for number in range(count[0])]
    finally:
        lib.libxl_dominfo_list_free(found, count[0])


def info(context: Context, domid: int) -> Info:
    """One domain; DomainNotFound if missing."""
    with struct("libxl_dominfo") as found:
        context.call("libxl_domain_info", found, domid, subject=f"domain {domid}")
        return _info(context, found[0])


def _info(context: Context, found: CData) -> Info:
    return Info(
        domid=found.domid,
        uuid=UUID(bytes=bytes(found.uuid.uuid)),
        name=name(context, found.domid),
        paused=found.paused,
        shutdown=found.shutdown,
        dying=found.dying,
        shutdown_reason=Shutdown.of(found.shutdown_reason) if found.shutdown else Shutdown.UNKNOWN,
        memory_kib=found.current_memkb,
        memory_max_kib=found.max_memkb,
        vcpus=found.vcpu_max_id + 1,
        cpu_time_ns=found.cpu_time,
        vcpus_online=found.vcpu_online,
    )


def name(context: Context, domid: int) -> str:
    """The name of a domain, or ``""`` while it is being made or ended."""
    found = lib.libxl_domid_to_name(context.ctx, domid)
    if found == ffi.NULL:
        context.take_log()
        return ""
    try:
        return text(found)
    finally:
        lib.free(found)


def set_memory(context: Context, domid: int, kib: int) -> None:
    """Set the target of the guest's balloon, and limit the domain's memory to the target.

    InvalidConfig, or another XenError: the target exceeds the domain's maximum from its creation.
    """
    context.call("libxl_set_memory_target", domid, kib, 0, 1, subject=f"domain {domid}")


def grow_paging_pool(_: Context, domid: int, kib: int) -> None:
    """Make the pool of a PVH domain's page tables at least this large; a PV domain has none.

    OSError: ENOMEM if Xen lacks the memory.
    """
    if code := lib.binding_grow_paging_pool(domid, kib * 1024):
        raise OSError(code, f"grow paging pool of domain {domid}: {os.strerror(code)}")


def set_vcpus(context: Context, domid: int, count: int, most: int) -> None:
    """Tell the guest to run the first ``count`` of its ``most`` vCPUs.  The guest has to comply."""
    with struct("libxl_bitmap") as online:
        context.call("libxl_cpu_bitmap_alloc", online, most)
        for number in range(count):
            lib.libxl_bitmap_set(online, number)
        context.call("libxl_set_vcpuonline", domid, online, ffi.NULL, subject=f"domain {domid}")
