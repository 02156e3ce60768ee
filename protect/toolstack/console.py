"""Reads console logs.  Their content comes from the guest and is untrusted."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

import aiofiles

from protect.model.toolstack import DomainId


async def read_tail(log: Path, limit: int) -> bytes:
    """The last ``limit`` bytes of a file; empty if the file does not exist."""
    try:
        async with aiofiles.open(log, "rb") as file:
            size = await file.seek(0, os.SEEK_END)
            await file.seek(max(0, size - limit))
            return await file.read(limit)
    except FileNotFoundError:
        return b""


class Consoles(ABC):
    """Base of the toolstacks: reads consoles from the files that ``console_log`` names."""

    @abstractmethod
    def console_log(self, domain: DomainId) -> Path: ...

    async def console(self, domain: DomainId, limit: int) -> bytes:
        """The last ``limit`` bytes of a domain's console (untrusted)."""
        return await read_tail(self.console_log(domain), limit)
