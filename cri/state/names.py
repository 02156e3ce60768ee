"""Ids, names and locks of sandboxes and containers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from daemonkit.faults import Exists
from xenpod_proto.cri.v1 import runtime_pb2 as cri


def new_id() -> str:
    """A new random id: 64 hexadecimal digits, as CRI clients expect; also a valid zone and workload id."""
    return secrets.token_hex(32)


class Names:
    """Reserved names with their holders' ids.  A name has one holder: a retry makes no duplicate."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._holders: dict[str, str] = {}

    def reserve(self, name: str, holder: str) -> None:
        """Reserve ``name``; Exists, with the first holder's id: the name is taken."""
        first = self._holders.setdefault(name, holder)
        if first != holder:
            raise Exists(
                f"reserve {self._kind} name", name, f"it is reserved for {first}", "remove that one first"
            )

    def holder(self, name: str) -> str | None:
        """The holder of ``name``, if any."""
        return self._holders.get(name)

    def release(self, name: str, holder: str) -> None:
        """Free ``name``; no effect on another holder's name."""
        if self._holders.get(name) == holder:
            del self._holders[name]


def sandbox_name(metadata: cri.PodSandboxMetadata) -> str:
    """The reserved name of a sandbox."""
    return "_".join((metadata.name, metadata.namespace, metadata.uid, str(metadata.attempt)))


def container_name(metadata: cri.ContainerMetadata, sandbox_id: str) -> str:
    """The reserved name of a container; names are unique within a sandbox."""
    return "_".join((metadata.name, sandbox_id, str(metadata.attempt)))


class Locks:
    """One lock for each id.  A lock exists while a task holds or awaits it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of ``key``."""
        lock, users = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)
