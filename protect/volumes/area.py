"""A zone's area: the directory it sees (``shared``), and what that is made of.

::

    <root>/                 a tmpfs, unbindable: a copy of the host's tree, as a volume may be one, has none
                            of any zone's area
    <root>/places/<workload>/<name>   empty files and directories, written by us alone
    <root>/shared/          ``places`` again, read-only, a shared mount: what is mounted below it reaches
                            the zone, which can neither add to it nor rename in it

Unmounting ``<root>`` takes everything away at once.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from protect.volumes import mounts

_OPTIONS = "mode=0755,size=4m,nr_inodes=65536"


@dataclass(frozen=True, slots=True)
class Area:
    """By its root.  Every method blocks, shortly, and raises OSError."""

    root: Path

    @property
    def places(self) -> Path:
        return self.root / "places"

    @property
    def shared(self) -> Path:
        return self.root / "shared"

    def make(self) -> None:
        """Where there is none.  What fails half-way is for ``remove``."""
        self.root.mkdir(mode=0o700, parents=True)
        mounts.tmpfs(self.root, _OPTIONS)
        mounts.propagate(self.root, mounts.MS_PRIVATE)
        self.places.mkdir(mode=0o755)
        self.shared.mkdir(mode=0o755)
        tree = mounts.clone(self.places, recursive=False)
        try:
            mounts.change(tree, add=mounts.MOUNT_ATTR_RDONLY, propagation=mounts.MS_SHARED, recursive=False)
            mounts.attach(tree, self.shared)
        finally:
            os.close(tree)
        mounts.propagate(self.root, mounts.MS_UNBINDABLE)

    def remove(self) -> None:
        """As far as it is there."""
        while mounts.unmount(self.root):
            pass
        with suppress(FileNotFoundError):
            self.root.rmdir()  # and nothing that removes what it finds in it

    def attach(self, workload: str, name: str, tree: int, *, directory: bool) -> None:
        """Show a tree of mounts to the zone."""
        place = self.places / workload / name
        place.parent.mkdir(mode=0o755, exist_ok=True)
        if directory:
            place.mkdir(mode=0o755)
        else:
            place.touch(mode=0o644, exist_ok=False)
        mounts.attach(tree, self.shared / workload / name)

    def detach(self, workload: str) -> None:
        """Everything of a workload, as far as it is there."""
        places = self.places / workload
        if not places.is_dir():
            return
        for place in list(places.iterdir()):
            while mounts.unmount(self.shared / workload / place.name):
                pass
            # One by one, empty: nothing here may ever remove what it finds.
            place.rmdir() if place.is_dir() else place.unlink()
        places.rmdir()

    def workloads(self) -> list[str]:
        """Those that something may be left of."""
        return os.listdir(self.places) if self.places.is_dir() else []
