"""Holders of the host's memory."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from xenbind import errors
from xenbind.context import Context
from xenbind.raw import ffi, lib

_KIB = 1024


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory held or claimed by one domain, and its maximum."""

    domid: int
    uuid: UUID
    held_bytes: int
    most_bytes: int
    vcpus: int


def holders(context: Context) -> list[Holder]:
    """All domains, dom0 included. One call for a thousand domains, because names are in xenstore."""
    count = ffi.new("int *")
    found = lib.libxl_list_domain(context.ctx, count)
    if found == ffi.NULL:
        raise errors.of("libxl_list_domain", lib.ERROR_FAIL, detail=context.take_log())
    try:
        return [
            Holder(
                domid=one.domid,
                uuid=UUID(bytes=bytes(one.uuid.uuid)),
                held_bytes=(one.current_memkb + one.outstanding_memkb) * _KIB,
                most_bytes=one.max_memkb * _KIB,
                vcpus=one.vcpu_max_id + 1,
            )
            for one in (found[number] for number in range(count[0]))
        ]
    finally:
        lib.libxl_dominfo_list_free(found, count[0])
