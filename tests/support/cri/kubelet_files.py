"""A pod's directory in a kubelet's layout: volumes, subPaths, further files (kubernetes/pkg/kubelet)."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from protect.host import mounts

_NUMBERS = itertools.count(1)


@dataclass
class AtomicFiles:
    """A volume's files as ``AtomicWriter`` writes them: each version whole, behind one symbolic link."""

    path: Path
    mode: int = 0o644

    def write(self, files: Mapping[str, str | bytes], gid: int | None = None) -> None:
        """Replace all files; names may have slashes.  ``gid``: the pod's fsGroup."""
        old = os.readlink(self.path / "..data") if (self.path / "..data").is_symlink() else ""
        new = f"..2026_01_02_03_04_05.{next(_NUMBERS)}"
        (self.path / new).mkdir(mode=0o755, parents=True)
        for name, content in files.items():
            place = self.path / new / name
            place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)
            place.chmod(self.mode)
            if gid is not None:
                os.chown(place, -1, gid)
        (self.path / "..data_tmp").symlink_to(new)
        (self.path / "..data_tmp").rename(self.path / "..data")
        tops = {name.split("/")[0] for name in files}
        for name in tops:
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"..data/{name}")
        for entry in self.path.iterdir():
            if not entry.name.startswith("..") and entry.name not in tops:
                entry.unlink()
        if old:
            shutil.rmtree(self.path / old)


@dataclass
class PodFiles:
    """``<root>/pods/<uid>`` of one pod."""

    path: Path
    _mounted: list[Path] = field(default_factory=list)

    def empty_dir(self, name: str, mode: int = 0o777) -> Path:
        """An emptyDir on disk."""
        made = self.path / "volumes/kubernetes.io~empty-dir" / name
        made.mkdir(parents=True)
        made.chmod(mode)
        return made

    def files(self, kind: str, name: str, *, memory: bool = False, mode: int = 0o644) -> AtomicFiles:
        """A volume of a kind: "configmap", "secret", "projected" or "downward-api"; ``memory``: a tmpfs."""
        made = self.path / f"volumes/kubernetes.io~{kind}" / name
        made.mkdir(parents=True)
        if memory:
            mounts.tmpfs(made, "size=8m,mode=0777")
            self._mounted.append(made)
        made.chmod(0o777)
        return AtomicFiles(made, mode)

    def sub_path(self, volume: Path, part: str, container: str = "main", number: int = 0) -> Path:
        """A bind mount of a part of a volume."""
        source = volume / part
        if not source.exists():
            source.mkdir(parents=True)
            source.chmod(volume.stat().st_mode & 0o7777)
        made = self.path / "volume-subpaths" / volume.name / container / str(number)
        made.parent.mkdir(parents=True, exist_ok=True)
        made.mkdir() if source.is_dir() else made.touch()
        tree = mounts.clone(source, recursive=False)
        try:
            mounts.attach_tree(tree, made)
        finally:
            os.close(tree)
        self._mounted.append(made)
        return made

    def etc_hosts(self, text: str) -> Path:
        """Written anew, in place."""
        made = self.path / "etc-hosts"
        self.path.mkdir(parents=True, exist_ok=True)
        made.write_text(text)
        made.chmod(0o644)
        return made

    def termination_log(self, container: str = "main") -> Path:
        made = self.path / "containers" / container / f"{next(_NUMBERS):08x}"
        made.parent.mkdir(parents=True, exist_ok=True)
        made.touch()
        made.chmod(0o666)
        return made

    def unmount(self) -> None:
        for place in reversed(self._mounted):
            while mounts.unmount(place):
                pass
        self._mounted.clear()


@contextlib.contextmanager
def pod_files(root: Path, uid: str = "0-1-2") -> Iterator[PodFiles]:
    """Pod directories of a kubelet with the root directory ``root``; the mounts are gone at the end."""
    made = PodFiles(root / "pods" / uid)
    try:
        yield made
    finally:
        made.unmount()
