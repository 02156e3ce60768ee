"""Opens the host's file that receives a zone's bytes at a workload's end: without links, and checked.

All functions block.
"""

from __future__ import annotations

import errno
import os
import stat

from protect.model.copied_files import FileId, FileVolume

_REST = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def open_returned(volume: FileVolume, flags: int, file: FileId) -> int:
    """A descriptor of the volume's file, opened with ``flags``, if the file is ``file``.

    OSError: a symbolic link on the path (ENOTDIR); a missing or different file, or one with several names
    (ESTALE).
    """
    place = _find(volume)
    try:
        status = os.fstat(place)
        if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != file:
            raise OSError(errno.ESTALE, "another file is there now", volume.host_path)
        # Another name may belong to another pod, or to the host.
        if status.st_nlink != 1:
            raise OSError(errno.ESTALE, f"the file has {status.st_nlink} names", volume.host_path)
        return os.open(f"/proc/self/fd/{place}", flags | _REST)
    finally:
        os.close(place)


def _find(volume: FileVolume) -> int:
    """A descriptor (O_PATH).  A symbolic link at the end is not followed; the result is the link itself."""
    names = [name for name in volume.host_path.removeprefix(volume.beneath).split("/") if name]
    if not names:
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), volume.host_path)
    *parents, name = names
    at = os.open(volume.beneath or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for parent in parents:
            below = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
