"""ZoneConsole: shows past and, if followed, later output on a zone's console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from daemonkit.faults import Broken, Missing, Refused
from daemonkit.tasks import race
from protect.host.tail import follow
from protect.model.lifetime import End
from protect.model.toolstack import Toolstack
from protect.model.zone import ZoneState
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime

OPERATION = "read console"


async def console(
    registry: Registry, toolstack: Toolstack, stopping: End, zone_id: str, lines: int, *, following: bool
) -> AsyncGenerator[bytes, None]:
    """Yield pieces of the console (untrusted): the last ``lines`` lines, 0 for all, then later output."""
    runtime = registry.zone(OPERATION, zone_id)
    subject = f"zone {zone_id}"
    if runtime.zone.state is ZoneState.DEAD:
        kept = runtime.zone.console.splitlines(keepends=True)
        yield "".join(kept[-lines:] if lines else kept).encode() + b"\n" * bool(kept)
        return
    if not runtime.zone.domain_id:
        raise Refused(OPERATION, subject, "it has no domain yet", "try again")
    log = toolstack.console_log(runtime.zone.domain_id)
    over = asyncio.Event() if following else None
    ending = asyncio.ensure_future(_end(stopping, runtime, over)) if over else None
    try:
        async with aclosing(follow(log, lines, over)) as pieces:
            async for piece in pieces:
                yield piece
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            raise Broken(OPERATION, subject, str(error)) from error
        hint = "on Xen: run xenconsoled with --log=guest"
        raise Missing(OPERATION, subject, f"its console is not kept: no {log}", hint) from None
    finally:
        if ending is not None:
            ending.cancel()


async def _end(stopping: End, runtime: ZoneRuntime, over: asyncio.Event) -> None:
    await race(runtime.end.wait(), stopping.wait())
    over.set()
