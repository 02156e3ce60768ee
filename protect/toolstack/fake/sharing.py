"""The shared directory of a fake zone: a mount that its agent attaches."""

from __future__ import annotations

import asyncio

from daemonkit.faults import Refused
from protect.model.toolstack import ShareEnd
from protect.toolstack.deaths import Listeners
from protect.toolstack.fake import faultplan
from protect.toolstack.fake.domain import Domain
from protect.toolstack.fake.faultplan import FaultInjector, FaultKind

_SESSION = "mount"


async def share(domain: Domain, faults: FaultInjector, ends: Listeners[ShareEnd]) -> str:
    """Starts no server; an injected fault may report the end of one."""
    name = domain.spec.name
    if domain.spec.shared is None:
        raise Refused("share", name, "it was made without a directory to share")
    fault = faults.take("share", name)
    await faultplan.before(fault, "share", name)
    if fault is not None and fault.kind is FaultKind.DIE:
        end = ShareEnd(domain.spec.uuid, _SESSION, "injected fault")
        asyncio.get_running_loop().call_later(fault.after_ms / 1000, ends.tell, end)
    faultplan.after(fault, "share", name)
    return _SESSION
