"""Domains: create, unpause, destroy, list, look at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from xenbind import errors
from xenbind.context import Context
from xenbind.raw import CData, ffi, lib

_INVALID = 0xFFFFFFFF  # INVALID_DOMID


class Shutdown(IntEnum):
    """libxl_shutdown_reason: why a domain ended by itself."""

    UNKNOWN = -1
    POWEROFF = 0
    REBOOT = 1
    SUSPEND = 2
    CRASH = 3
    WATCHDOG = 4
    SOFT_RESET = 5

    @classmethod
    def of(cls, code: int) -> Shutdown:
        """The reason for libxl's number; UNKNOWN for one that is not in the list."""
        return cls(code) if code in cls._value2member_map_ else cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Info:
    """A domain as libxl sees it; memory in KiB.  ``dying`` ones are destroyed, but still referred to."""

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


@contextmanager
def _config(context: Context, json_text: str) -> Iterator[CData]:
    """A parsed libxl_domain_config, whose members are freed at the end."""
    config = ffi.new("libxl_domain_config *")
    lib.libxl_domain_config_init(config)
    try:
        context.call(
            lib.libxl_domain_config_from_json,
            config,
            json_text.encode(),
            name="libxl_domain_config_from_json",
        )
        yield config
    finally:
        lib.libxl_domain_config_dispose(config)


def create(context: Context, config: Mapping[str, object]) -> int:
    """Make a domain, paused; its number.  ``config`` is libxl's JSON (libxl_domain_config).

    When it fails, a domain that had come into being is destroyed again.
    """
    domid = ffi.new("uint32_t *", _INVALID)
    with _config(context, json.dumps(config)) as parsed:
        code = lib.libxl_domain_create_new(context.ctx, parsed, domid, ffi.NULL, ffi.NULL)
    try:
        context.check("libxl_domain_create_new", code)
    except errors.XenError:
        if domid[0] not in (_INVALID, 0):
            with suppress(errors.DomainNotFound):  # mostly libxl has done so itself
                destroy(context, domid[0])
        raise
    return int(domid[0])


def unpause(context: Context, domid: int) -> None:
    """Let it run."""
    context.call(
        lib.libxl_domain_unpause, domid, ffi.NULL, name="libxl_domain_unpause", subject=f"domain {domid}"
    )


def destroy(context: Context, domid: int) -> None:
    """End it and free what it has.  DomainNotFound when there is none."""
    context.call(
        lib.libxl_domain_destroy, domid, ffi.NULL, name="libxl_domain_destroy", subject=f"domain {domid}"
    )


def domains(context: Context) -> list[Info]:
    """All domains, dom0 among them."""
    count = ffi.new("int *")
    found = lib.libxl_list_domain(context.ctx, count)
    if found == ffi.NULL:
        context.check("libxl_list_domain", -3)
    try:
        return [_info(context, found[number]) for number in range(count[0])]
    finally:
        lib.libxl_dominfo_list_free(found, count[0])


def info(context: Context, domid: int) -> Info:
    """One domain; DomainNotFound when there is none."""
    found = ffi.new("libxl_dominfo *")
    lib.libxl_dominfo_init(found)
    try:
        context.call(lib.libxl_domain_info, found, domid, name="libxl_domain_info", subject=f"domain {domid}")
        return _info(context, found[0])
    finally:
        lib.libxl_dominfo_dispose(found)


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
    )


def name(context: Context, domid: int) -> str:
    """Its name, or ``""`` for one without (a domain that is being made or ended)."""
    found = lib.libxl_domid_to_name(context.ctx, domid)
    if found == ffi.NULL:
        context.take_log()
        return ""
    try:
        return ffi.string(found).decode(errors="replace")  # type: ignore[no-any-return]
    finally:
        lib.free(found)
