"""Who has the host's memory, as the ledger of zones wants it."""

from __future__ import annotations

from protect.model.toolstack import HostMemory
from protect.toolstack.libxl.config import overhead_bytes
from xenbind import memory, physinfo
from xenbind.context import Context

_DOM0 = 0


def host_memory(context: Context, sharing: int) -> HostMemory:
    """Read what domains have, and only then what is free.  ``sharing``: bytes of the file servers."""
    holders = memory.holders(context)
    free = physinfo.physinfo(context).free_bytes
    return HostMemory(
        free=free,
        domains={
            one.uuid: one.held_bytes + overhead_bytes(one.held_bytes, one.vcpus)
            for one in holders
            if one.domid != _DOM0
        },
        dom0=sum(one.held_bytes for one in holders if one.domid == _DOM0),
        sharing=sharing,
    )
