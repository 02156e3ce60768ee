"""Exclusive use of the host's block devices.

A claim is an open with O_EXCL.  While the claim is held, the kernel lets no other user mount the device, one
of its partitions or its whole disk, nor use it for swap, LVM or RAID.  During one of these uses a claim
fails.

Source: open(2), block/bdev.c (bd_prepare_to_claim).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from daemonkit.faults import Broken, Invalid, Missing, Refused

_OPERATION = "claim block device"
_MOUNTS, _SWAPS, _BLOCK = Path("/proc/1/mountinfo"), Path("/proc/swaps"), Path("/sys/dev/block")


class Claim:
    """A claimed device; no other user of the host can take it until ``close`` (may be repeated)."""

    __slots__ = ("fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def claim(path: Path, *, readonly: bool) -> Claim:
    """Claim a device.  A read-only claim is only checked, not held: others may read the device, too.

    Missing, Invalid: no block device at the path; Refused: the device is in use, or cannot be written.
    """
    fd = _open(path, (os.O_RDONLY if readonly else os.O_RDWR) | os.O_EXCL)
    if not stat.S_ISBLK(os.fstat(fd).st_mode):
        os.close(fd)
        raise Invalid(_OPERATION, str(path), "not a block device")
    if not readonly:
        return Claim(path, fd)
    os.close(fd)
    return Claim(path, _open(path, os.O_RDONLY))


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise Missing(_OPERATION, str(path), "there is none") from None
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise Refused(_OPERATION, str(path), in_use(path), "release it there first") from None
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise Refused(_OPERATION, str(path), f"it cannot be written: {error.strerror}") from None
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM):
            raise Missing(_OPERATION, str(path), f"there is no device behind it: {error.strerror}") from None
        raise Broken(_OPERATION, str(path), error.strerror or str(error)) from error


def in_use(path: Path) -> str:
    """The users of an unclaimable device, as far as the kernel tells."""
    users: list[str] = []
    # If the device vanishes now, the sentence without a name is still right.
    with suppress(OSError):
        numbers = _family(os.stat(path).st_rdev)
        users = [*_mounts(numbers), *_swaps(numbers), *_holders(numbers)]
    return f"it is in use: {'; '.join(users)}" if users else "it is in use by the host, or by another zone"


def number_text(device: int) -> str:
    """``<major>:<minor>``."""
    return f"{os.major(device)}:{os.minor(device)}"


def _family(device: int) -> set[str]:
    """The device with its partitions, or a partition with its whole disk."""
    place = (_BLOCK / number_text(device)).resolve()
    whole = place.parent if (place / "partition").exists() else place
    parts = [whole, *(entry for entry in whole.iterdir() if (entry / "partition").exists())]
    mine = parts if place == whole else [place, whole]
    return {(part / "dev").read_text().strip() for part in mine}


def _mounts(numbers: set[str]) -> Iterator[str]:
    for line in _MOUNTS.read_text(errors="replace").splitlines():
        fields = line.split(" ")
        if fields[2] in numbers:
            yield f"the host has it mounted at {fields[4]}"
            return


def _swaps(numbers: set[str]) -> Iterator[str]:
    for line in _SWAPS.read_text().splitlines()[1:]:
        with suppress(OSError):  # the swap file was removed
            if number_text(os.stat(line.split()[0]).st_rdev) in numbers:
                yield "the host swaps to it"


def _holders(numbers: set[str]) -> Iterator[str]:
    for number in sorted(numbers):
        for holder in sorted((_BLOCK / number / "holders").iterdir()):
            yield f"{holder.name} of the host is built on it"
