"""Backends in xenstore whose domain is gone, and which nobody else removes."""

from __future__ import annotations

import logging
from collections.abc import Container

from daemonkit.logs import fields
from protect.toolstack.libxl.config import NO_SCRIPT
from protect.toolstack.libxl.xenstore.store import AsyncStore

log = logging.getLogger(__name__)

_ALL = "/local/domain/0/backend"


class Backends:
    """Of disks and interfaces.

    Whoever ends a domain lists its devices first, and last removes the nodes that name them.  A disk that is
    attached in between keeps its backend, and dom0's kernel the device behind it.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def list(self) -> dict[str, int]:
        """The path of each domain's backends, by kind, and the domain's number.  OSError."""
        return {
            f"{_ALL}/{kind}/{number}": int(number)
            for kind in await self._store.list(_ALL)
            for number in await self._store.list(f"{_ALL}/{kind}")
            if number.isdecimal()
        }

    async def remove_left(self, listed: dict[str, int], living: Container[int]) -> None:
        """Remove those of zones without a domain.  ``listed``: before the ``living`` were, since a new
        domain comes before its backends.  OSError."""
        for path in [path for path, domid in listed.items() if domid not in living]:
            if await self._is_of_a_zone(path):
                log.warning("backend of a domain that is gone: removed", extra=fields(path=path))
                await self._store.remove(path)

    async def _is_of_a_zone(self, path: str) -> bool:
        """By the script of each device: those of other virtual machines have something to do."""
        devices = await self._store.list(path)
        scripts = [await self._store.read(f"{path}/{device}/script") for device in devices]
        return bool(scripts) and all(script == NO_SCRIPT.encode() for script in scripts)
