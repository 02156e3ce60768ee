"""A zone's area: the directory that the zone sees, and its parts.

::

    <root>/                          a tmpfs, unbindable: a copy of the host's tree, which a volume may be,
                                     has no zone's area in it
    <root>/places/<workload>/<name>  empty files and directories, written by us alone
    <root>/namespace                 a mount namespace of the zone's own, whose root is ``places``, read-only
                                     and a shared mount; volumes are mounted there

So the zone can neither add to its directory nor rename in it, and the host can remove what volumes are
made of.  Unmounting ``<root>`` takes everything away at once.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from protect.host import mounts, mountspace

_OPTIONS = "mode=0755,size=4m,nr_inodes=65536"


@dataclass(frozen=True, slots=True)
class Area:
    """The area with this root.  Every method blocks for a short time, and may raise OSError."""

    root: Path

    @property
    def places(self) -> Path:
        return self.root / "places"

    @property
    def namespace(self) -> Path:
        return self.root / "namespace"

    def make(self) -> None:
        """Make a new area; after a failure, ``remove`` cleans up."""
        self.root.mkdir(mode=0o700, parents=True)
        mounts.tmpfs(self.root, _OPTIONS)
        mounts.propagate(self.root, mounts.MS_PRIVATE)
        self.places.mkdir(mode=0o755)
        self.namespace.touch(mode=0o400)
        mountspace.kept(self._tree, self.namespace)
        mounts.propagate(self.root, mounts.MS_UNBINDABLE)

    def _tree(self) -> int:
        """The root of the new namespace."""
        tree = mounts.clone(self.places, recursive=False)
        try:
            mounts.change(tree, add=mounts.MOUNT_ATTR_RDONLY, recursive=False)
        except BaseException:
            os.close(tree)
            raise
        return tree

    def remove(self) -> None:
        """Remove the area, as far as it exists."""
        while mounts.unmount(self.root):
            pass
        with suppress(FileNotFoundError):
            self.root.rmdir()  # and nothing that removes what it finds in it

    def attach(self, workload: str, name: str, tree: int, *, directory: bool) -> None:
        """Show a tree of mounts to the zone."""
        places = self.places / workload
        if not places.exists():
            places.mkdir(mode=0o755)
            mountspace.inside(self.namespace, lambda: _cover(Path("/", workload)))
        place = places / name
        if directory:
            place.mkdir(mode=0o755)
        else:
            place.touch(mode=0o644, exist_ok=False)
        mountspace.inside(self.namespace, lambda: mounts.attach(tree, Path("/", workload, name)))

    def detach(self, workload: str) -> None:
        """Remove a workload's volumes, as far as they exist."""
        places = self.places / workload
        if not places.is_dir():
            return
        mountspace.inside(self.namespace, lambda: _uncover(Path("/", workload)))
        for place in list(places.iterdir()):
            # One by one, empty: nothing here may ever remove what it finds.
            place.rmdir() if place.is_dir() else place.unlink()
        places.rmdir()


def _cover(place: Path) -> None:
    """Mount a directory on itself: what is below is then unmounted at once (each takes milliseconds)."""
    tree = mounts.clone(place, recursive=False)
    try:
        mounts.attach(tree, place)
    finally:
        os.close(tree)


def _uncover(place: Path) -> None:
    while mounts.unmount(place):
        pass
