"""Block devices of this host, found by the callers' paths."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from daemonkit.faults import Broken, Invalid, Missing, Refused, TooLate
from daemonkit.host.lookup import Lookup, Lookups
from protect.model.volume import HostBlockDevice

_OPERATION = "find block device"


class HostBlockDevices:
    """``protect.model.volume.HostDevices``.  Processes look the paths up; a hung process can be abandoned."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups

    async def find(self, zone_id: str, paths: Sequence[str], timeout: float) -> list[HostBlockDevice]:
        if not paths:
            return []
        try:
            async with asyncio.timeout(timeout), self._lookups.begin(zone_id) as lookup:
                return [await _find(lookup, path) for path in paths]
        except TimeoutError:
            cause = f"the host did not find it within {timeout:g} s"
            raise TooLate(_OPERATION, f"{', '.join(paths):.400}", cause) from None


async def _find(lookup: Lookup, path: str) -> HostBlockDevice:
    try:
        with await lookup.find(path) as place:
            if not stat.S_ISBLK(place.mode):
                raise Invalid(
                    _OPERATION, path, "not a block device", "other devices have to be named by config"
                )
            number = os.fstat(place.descriptor).st_rdev
            real = os.readlink(f"/proc/self/fd/{place.descriptor}")
    except FileNotFoundError:
        raise Missing(_OPERATION, path, "there is none") from None
    except OSError as error:
        raise Refused(_OPERATION, path, error.strerror or str(error)) from error
    return HostBlockDevice(_openable(path, real, number), number)


def _openable(path: str, real: str, number: int) -> Path:
    """A path to the same device: the node may be in a mount that only the lookup process saw."""
    kernels = Path("/sys/dev/block") / f"{os.major(number)}:{os.minor(number)}"
    for candidate in (Path(real), Path("/dev") / kernels.resolve().name):
        try:
            status = candidate.stat()
        except OSError:
            continue
        if stat.S_ISBLK(status.st_mode) and status.st_rdev == number:
            return candidate
    raise Broken(_OPERATION, path, f"neither {real} nor a node in /dev is the device that was found")
