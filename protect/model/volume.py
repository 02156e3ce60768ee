"""A file or directory of the host that a workload is to see."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume, checked: ``name`` is a plain file name, ``host_path`` is absolute and has no ``..``."""

    name: str
    host_path: str
    readonly: bool = False
    """Read-only, together with all that is mounted below it."""
    follow_host: bool = False
    """Later mounts and unmounts below it on the host show in the zone, unless it is read-only."""
    create_directory: bool = False
    """Make a directory if there is nothing at the path."""
    map_ids: bool = False
    """Map its ids by the zone's user namespace."""


@dataclass(slots=True)
class VolumeSource:
    """A volume's mounts, with their attributes set, but not attached yet; ``close`` discards them."""

    volume: Volume
    tree: int
    """A descriptor."""
    directory: bool

    def close(self) -> None:
        tree, self.tree = self.tree, -1
        if tree >= 0:
            os.close(tree)


def close_all(sources: Iterable[VolumeSource]) -> None:
    """Close each source; may be repeated."""
    for source in sources:
        source.close()
