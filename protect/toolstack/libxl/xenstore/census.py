"""Lists the domains, and finds ours by their marks in xenstore, or their names."""

from __future__ import annotations

import logging
from dataclasses import replace
from uuid import UUID

from protect.model.toolstack import MARK_LIMIT, DomainInfo
from protect.model.zone import is_zone_domain
from protect.toolstack.libxl.config import MARK, domain_info
from protect.toolstack.libxl.deaths import DomainRegistry, Known
from protect.toolstack.libxl.workers import Workers
from protect.toolstack.libxl.xenstore.backends import Backends
from protect.toolstack.libxl.xenstore.store import AsyncStore
from xenbind import domain as xen

log = logging.getLogger(__name__)


class Census:
    """Lists domains: the hypervisor knows their existence, xenstore our marks, as long as it keeps them."""

    def __init__(self, workers: Workers, store: AsyncStore, registry: DomainRegistry) -> None:
        self._workers = workers
        self._store = store
        self._registry = registry
        self.backends = Backends(workers, store)

    async def take(self) -> tuple[list[DomainInfo], list[Known]]:
        """All domains, and the known domains that have vanished; without dom0 and dying domains.

        A dying domain only waits for its mapped pages.  From time to time the census also removes leftovers
        of ended zones in xenstore.
        """
        await self.backends.look()
        before = self._registry.uuids()  # a domain created during the listing has not vanished
        listed = []
        for info in await self._workers.ask(xen.domains):
            if info.domid and not info.dying:
                name, mark = await self._identity(info)
                if mark or is_zone_domain(name, info.uuid):
                    self._registry.add(info.domid, info.uuid, name, mark)
                listed.append(replace(domain_info(info), name=name, mark=mark))
        return listed, self._registry.vanished(before - {info.uuid for info in listed})

    async def claim(self, uuid: UUID, name: str, mark: str) -> DomainInfo | None:
        """Write the xenstore data that a domain has lost; see ``Toolstack.claim``."""
        living = (info for info in await self._workers.ask(xen.domains) if info.domid and not info.dying)
        info = next((info for info in living if info.uuid == uuid), None)
        if info is None:
            return None
        name = info.name or name
        _, marked = await self._identity(info)
        path = f"/local/domain/{info.domid}"
        if not info.name:
            await self._store.write(f"{path}/name", name)
        if not marked:
            await self._store.write(f"{path}/{MARK}", mark)
        self._registry.add(info.domid, uuid, name, marked or mark)
        return replace(domain_info(info), name=name, mark=marked or mark)

    async def _identity(self, info: xen.Info) -> tuple[str, str]:
        """Name and mark.  For a known domain they are constant, even if xenstore loses its data."""
        known = self._registry.get(info.domid)
        if known is not None and known.uuid == info.uuid and known.mark:
            return known.name, known.mark
        try:
            # Only dom0 can write the mark, but an administrator may have written it.
            untrusted_mark = await self._store.read(f"/local/domain/{info.domid}/{MARK}")
        except OSError as error:
            log.debug("no mark of domain %d can be read: %s", info.domid, error)
            untrusted_mark = None
        name = info.name or (known.name if known and known.uuid == info.uuid else "")
        text = (untrusted_mark or b"").decode(errors="replace")
        return name, text if len(text) <= MARK_LIMIT else ""
