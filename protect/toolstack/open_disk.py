"""The host's side of a disk for both toolstacks: checks its name, and makes a loop device for a file."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from pathlib import Path

from daemonkit.faults import Invalid
from protect.host.loops import Loop, attach_loop
from protect.model.toolstack import DiskSpec

VDEV = re.compile(r"xvd[a-z]{1,2}")


def check_name(disk: DiskSpec) -> None:
    """Invalid: not a disk's name."""
    if not VDEV.fullmatch(disk.vdev):
        raise Invalid("attach disk", disk.vdev, "not a name like xvda")


async def open_disk(disk: DiskSpec) -> Loop | None:
    """Attach a loop device to a file; None for a block device, which needs none.  Missing, Invalid."""
    check_name(disk)
    if await asyncio.to_thread(_is_block_device, disk.path):
        return None
    # One domain writes and caches the content.
    return await attach_loop(disk.path, disk.readonly, direct=not disk.readonly)


def _is_block_device(path: Path) -> bool:
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except FileNotFoundError:
        return False  # attach_loop explains it
