"""Logs of consoles: what is in them is the guest's, and untrusted."""

from __future__ import annotations

import os
from pathlib import Path

import aiofiles


async def read_tail(log: Path, limit: int) -> bytes:
    """The last ``limit`` bytes; nothing when there is no such file."""
    try:
        async with aiofiles.open(log, "rb") as file:
            size = await file.seek(0, os.SEEK_END)
            await file.seek(max(0, size - limit))
            return await file.read(limit)
    except FileNotFoundError:
        return b""
