"""Bytes to and from a zone's agent."""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    """A connected byte stream to a zone's agent."""

    async def read(self, limit: int) -> bytes:
        """At least one byte, at most ``limit``; ``b""`` once the other side is gone."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all of it, waiting while the other side does not read; ConnectionError when gone."""
        ...

    async def close(self) -> None:
        """Close at once; never fails; a read under way gives ``b""``."""
        ...
