"""``protect host console``: Xen's own console, its ring of messages (``xl dmesg``)."""

from __future__ import annotations

import argparse
import asyncio

from protect.host.programs import run_program
from protectctl import show


async def console(options: argparse.Namespace) -> None:
    """Show the last lines.  Fault: the host is no dom0, or xl is not installed."""
    text = await asyncio.to_thread(run_program, ["xl", "dmesg"])
    shown = show.ConsoleText()
    lines = text.splitlines(keepends=True)
    shown.write(b"".join(lines[-options.lines :] if options.lines else lines))
    shown.end()
