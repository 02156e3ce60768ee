"""Remains of a test's protectd in the kernel and on disk."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def instance(run_dir: Path) -> str:
    """The fake toolstack's name for all objects of this run directory."""
    return "xenpod-" + sha256(os.fsencode(os.path.realpath(run_dir / "fake"))).hexdigest()[:8]


def processes(run_dir: Path) -> list[str]:
    """The processes in the instance's control groups."""
    name = instance(run_dir)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if name in (entry / "cgroup").read_text():
                    found.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def cgroups(run_dir: Path) -> list[str]:
    """Groups of domains; the instance's own group stays while its daemon runs."""
    name = instance(run_dir)
    trees = [_CGROUPS, *(tree for tree in _CGROUPS.iterdir() if tree.is_dir())]
    return [str(group) for tree in trees for group in (tree / name).glob("*") if group.is_dir()]


def loops(folder: Path) -> list[str]:
    """Loop devices on files of the folder."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            name = backing.read_text().strip()
        except OSError:
            continue  # detached between the two
        if name.startswith(f"{folder}/"):
            found.append(f"{backing.parts[3]} {name}")
    return found


def mounts(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


def files(run_dir: Path) -> list[str]:
    """The files of zones and domains, and of scratch disks, whose state directory is beside."""
    parts = [path for part in ("zones", "volumes", "fake/domains") for path in (run_dir / part).glob("*")]
    beside = [folder for folder in run_dir.parent.iterdir() if not folder.is_symlink()]
    scratch = [path for folder in beside for path in folder.glob("scratch/*")]
    return [str(path) for path in [*parts, *scratch]]


def of(folder: Path, run_dir: Path) -> list[str]:
    """Everything; empty when nothing is left."""
    return [
        *processes(run_dir),
        *cgroups(run_dir),
        *loops(folder),
        *mounts(folder),
        *files(run_dir),
    ]
