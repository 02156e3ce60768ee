"""The ledger of zone memory on this host."""

from __future__ import annotations

from daemonkit.faults import Exhausted

_MIB = 1 << 20


class Ledger:
    """Reservations by zone id, in bytes, within a fixed total."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._reserved: dict[str, int] = {}

    @property
    def reserved_bytes(self) -> int:
        return sum(self._reserved.values())

    @property
    def free_bytes(self) -> int:
        """Bytes left for another zone; 0 if adopted zones hold more than the total."""
        return max(0, self.total_bytes - self.reserved_bytes)

    def admit(self, zone_id: str, size_bytes: int) -> None:
        """Reserve memory for a new zone.  Exhausted, with the numbers: it does not fit."""
        if size_bytes > self.free_bytes:
            raise Exhausted(
                "reserve memory",
                f"zone {zone_id}",
                f"it needs {_mib(size_bytes)}, free are {_mib(self.free_bytes)} of {_mib(self.total_bytes)} "
                f"({len(self._reserved)} zones hold {_mib(self.reserved_bytes)})",
                "destroy zones, or give them less memory",
            )
        self._reserved[zone_id] = size_bytes

    def change(self, zone_id: str, size_bytes: int) -> None:
        """Reserve another amount for a zone that has some.  Exhausted, with the numbers: it does not fit."""
        more = size_bytes - self._reserved.get(zone_id, 0)
        if more > self.free_bytes:
            raise Exhausted(
                "resize zone",
                zone_id,
                f"it needs {_mib(more)} more, free are {_mib(self.free_bytes)} of {_mib(self.total_bytes)} "
                f"({len(self._reserved)} zones hold {_mib(self.reserved_bytes)})",
                "destroy zones, or give them less memory",
            )
        self._reserved[zone_id] = size_bytes

    def adopt(self, zone_id: str, size_bytes: int) -> None:
        """Reserve memory for a zone that exists already, whether it fits or not."""
        self._reserved[zone_id] = size_bytes

    def release(self, zone_id: str) -> None:
        """Free a zone's memory; an unknown zone is fine."""
        self._reserved.pop(zone_id, None)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.0f} MiB"
