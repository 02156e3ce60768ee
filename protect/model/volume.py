"""A file or directory of the host that a workload is to see."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Volume:
    """Checked: ``name`` is a plain file name, ``host_path`` absolute and without ``..``."""

    name: str
    host_path: str
    readonly: bool = False
    recursive_readonly: bool = False
    """What is mounted below is read-only too."""
    follow_host: bool = False
    """What is mounted below later is seen, what is unmounted goes."""
    create_directory: bool = False
    """Where there is nothing, make a directory."""
    map_ids: bool = False
    """Its ids are those that the zone's user namespace maps to them."""


@dataclass(slots=True)
class Source:
    """A volume's mounts, taken and set right, attached nowhere yet; they go away with ``close``."""

    volume: Volume
    tree: int
    """A descriptor."""
    directory: bool

    def close(self) -> None:
        tree, self.tree = self.tree, -1
        if tree >= 0:
            os.close(tree)


def close(sources: Iterable[Source]) -> None:
    """Of each, once or again."""
    for source in sources:
        source.close()
