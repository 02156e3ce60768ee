"""Makes a control group in every hierarchy; a kubelet makes the groups of pods below."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

_TREE = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def control_group(owner: Path) -> Iterator[str]:
    """Make a group, which is removed with all groups below: the name for the kubelet's ``cgroupRoot``.

    An AssertionError names the remaining processes in the group, which are killed.
    """
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
        left = _killed(groups)
        for group in groups:
            _remove(group)
        assert not left, f"still ran: {left}"


def _killed(groups: Sequence[Path]) -> list[str]:
    """Kill containers that have outlived their runtime, until none is left: their command lines."""
    found: dict[int, str] = {}
    while pids := {pid for group in groups for path in group.rglob("cgroup.procs") for pid in _pids(path)}:
        for pid in pids:
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[pid] = found.get(pid) or line
                os.kill(pid, signal.SIGKILL)
    return list(found.values())


def _pids(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text().split()]
    except OSError:
        return []  # the group is gone


def _remove(group: Path) -> None:
    """Remove groups, also the groups of quality-of-service classes, which the kubelet leaves behind."""
    if group.exists():
        for below in group.iterdir():
            if below.is_dir():
                _remove(below)
        group.rmdir()
