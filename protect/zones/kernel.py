"""Check of a zone's own kernel: the host reads its files as root."""

from __future__ import annotations

import stat
from pathlib import Path

from daemonkit.faults import Missing, Refused
from protect.model.toolstack import DomainKernel

_CREATE = "create zone"
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def check_kernel(zone_id: str, kernel: DomainKernel) -> None:
    """Check the files.  Missing.  Refused: not regular, or writable by others than root.  Blocks."""
    for path in (kernel.image, kernel.initramfs, kernel.addons):
        if path is not None:
            _check_file(zone_id, path)
            for folder in path.parents:
                _check_folder(zone_id, path, folder)


def _check_file(zone_id: str, path: Path) -> None:
    try:
        found = path.lstat()
    except OSError as error:
        raise Missing(_CREATE, zone_id, f"kernel file {path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise Refused(_CREATE, zone_id, f"kernel file {path}: not a regular file")
    if found.st_uid != 0 or found.st_mode & _OTHERS:
        raise Refused(_CREATE, zone_id, f"kernel file {path}: others than root may write it")


def _check_folder(zone_id: str, path: Path, folder: Path) -> None:
    """Refused: others than root can rename files in the folder.  A sticky folder like /tmp passes."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(_CREATE, zone_id, f"kernel file {path}: {folder} is a symbolic link")
    if found.st_uid != 0 or (found.st_mode & _OTHERS and not found.st_mode & stat.S_ISVTX):
        raise Refused(_CREATE, zone_id, f"kernel file {path}: others than root may write {folder}")
