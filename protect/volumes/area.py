"""A zone's area: its shared directory, with supporting files.

::

    <root>/                          a tmpfs, unbindable: a copy of the host's tree (a possible volume)
                                     contains no zone's area
    <root>/places/<workload>/<name>  empty files and directories, written by us alone
    <root>/namespace                 the zone's mount namespace; its root is ``places``, read-only
                                     and a shared mount; volumes are mounted in it
    <root>/stage                     a second namespace, invisible to zones, with copies of the read-only
                                     volumes that follow the host: see following.py

The zone can neither add to its directory nor rename in it, and the host can remove the sources of volumes.
An unmount of ``<root>`` removes everything at once.
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

    @property
    def stage(self) -> Path:
        return self.root / "stage"

    def has_stage(self) -> bool:
        """Whether the stage namespace exists, not only the file for its mount."""
        try:
            return self.stage.stat().st_dev != self.root.stat().st_dev
        except FileNotFoundError:
            return False

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

    def _root_again(self) -> int:
        """The root of the new namespace, without propagation from the zone's: kept() makes it private."""
        return mountspace.inside(self.namespace, lambda: mounts.clone(Path("/"), recursive=False))

    def remove(self) -> None:
        """Remove the area, as far as it exists."""
        while mounts.unmount(self.root):
            pass
        with suppress(FileNotFoundError):
            self.root.rmdir()  # never remove recursively: a mount's files could be deleted

    def attach(self, workload: str, name: str, tree: int, *, directory: bool, stage: int = -1) -> None:
        """Show a tree of mounts to the zone; ``stage``: a copy that follows the host, -1 for none."""
        places = self.places / workload
        if not places.exists():
            places.mkdir(mode=0o755)
            mountspace.inside(self.namespace, lambda: _cover(Path("/", workload)))
        place = places / name
        if directory:
            place.mkdir(mode=0o755)
        else:
            place.touch(mode=0o644, exist_ok=False)
        if stage >= 0:
            if not self.has_stage():
                self.stage.touch(mode=0o400)
                mountspace.kept(self._root_again, self.stage)
            mountspace.inside(self.stage, lambda: _staged(stage, Path("/", workload), name))
        mountspace.inside(self.namespace, lambda: mounts.attach_tree(tree, Path("/", workload, name)))

    def detach(self, workload: str) -> None:
        """Remove a workload's volumes, as far as they exist."""
        places = self.places / workload
        if not places.is_dir():
            return
        mountspace.inside(self.namespace, lambda: _uncover(Path("/", workload)))
        if self.has_stage():
            mountspace.inside(self.stage, lambda: _uncover(Path("/", workload)))
        for place in list(places.iterdir()):
            # One by one, empty: a recursive removal could delete files of a volume.
            place.rmdir() if place.is_dir() else place.unlink()
        places.rmdir()


def _cover(place: Path) -> None:
    """Mount a directory on itself: one unmount then removes all mounts below (each takes milliseconds)."""
    tree = mounts.clone(place, recursive=False)
    try:
        mounts.attach_tree(tree, place)
    finally:
        os.close(tree)


def _staged(tree: int, workload: Path, name: str) -> None:
    if not os.path.ismount(workload):
        _cover(workload)
    mounts.attach_tree(tree, workload / name)


def _uncover(place: Path) -> None:
    while mounts.unmount(place):
        pass
