"""Directories of zones, with the journals of their logs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from protect.state.runtime import WorkloadRuntime


@dataclass(frozen=True, slots=True)
class ZoneDirs:
    """A directory for each zone below ``root``."""

    root: Path

    def of(self, zone_id: str) -> Path:
        return self.root / zone_id

    def journal(self, runtime: WorkloadRuntime) -> Path:
        """File with the position in a workload's log."""
        return self.of(runtime.zone.id) / f"{runtime.id}.journal"

    def clear(self, zone_id: str) -> None:
        """Remove the directory of a zone, if any."""
        shutil.rmtree(self.of(zone_id), ignore_errors=True)

    def zones(self) -> list[str]:
        """Zones with a directory."""
        return [entry.name for entry in self.root.iterdir()] if self.root.is_dir() else []
