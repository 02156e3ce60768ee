"""A control group of a test's own, in every hierarchy, in which a kubelet makes those of pods."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

_TREE = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def control_group(owner: Path) -> Iterator[str]:
    """Its name, as the kubelet's ``cgroupRoot`` has it; it goes with all that is below it."""
    name = f"xenpod-kubelet-{sha256(str(owner).encode()).hexdigest()[:8]}"
    # Version 1 has a folder for each hierarchy, some of them under two names.
    unified = (_TREE / "cgroup.controllers").exists()
    trees = [_TREE] if unified else {path.resolve() for path in _TREE.iterdir() if path.is_dir()}
    groups = [tree / name for tree in trees]
    try:
        for group in groups:
            group.mkdir()
        yield f"/{name}"
    finally:
        for group in groups:
            _remove(group)


def _remove(group: Path) -> None:
    """The kubelet leaves those of the quality-of-service classes behind."""
    if group.exists():
        for below in group.iterdir():
            if below.is_dir():
                _remove(below)
        group.rmdir()
