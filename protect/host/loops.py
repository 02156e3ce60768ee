"""Loop devices: a file as a read-only or writable block device that frees itself after its last user.

A device has LO_FLAGS_AUTOCLEAR: it lives exactly as long as a process has it open (we by ``Loop``) or a mount
uses it.  A killed daemon therefore leaks no device.  A device without other users is then gone, and the
caller has to attach it again.

``take_device`` makes a loop device of a block device, and holds its claim.  Its users do not always keep the
device open; ``keep`` lets it live without an open descriptor, until released.

Source: linux/loop.h (struct loop_config, LOOP_CONFIGURE since Linux 5.8).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

from daemonkit.faults import Broken, Exhausted, Invalid, Missing
from daemonkit.tasks import join
from protect.host.blockdev import claim

_CONTROL = "/dev/loop-control"
_SET_CONFIG = 0x4C0A
_SET_STATUS = 0x4C04
_GET_STATUS = 0x4C05
_SET_DIRECT_IO = 0x4C08
_GET_FREE = 0x4C82
_READ_ONLY, _AUTOCLEAR, _DIRECT_IO = 1, 4, 16
_FLAGS = 8  # index of lo_flags in loop_info64
_INFO = struct.Struct("=5Q4I64s64s32s2Q")  # struct loop_info64
_CONFIG = struct.Struct(f"=2I{_INFO.size}s64x")  # struct loop_config
_SECTOR_BYTES = 512
_RETRY_SECONDS = 10.0
"""Seconds of retries if other processes take the free devices first."""

_taking = threading.Lock()  # our own threads need not compete for the same free number


class Loop:
    """One attached loop device, held open until ``close`` (may be repeated)."""

    __slots__ = ("fd", "major", "minor", "path")

    def __init__(self, path: Path, fd: int) -> None:
        device = os.fstat(fd).st_rdev
        self.path = path
        self.fd = fd
        self.major = os.major(device)
        self.minor = os.minor(device)

    def close(self) -> None:
        """Close the device; the kernel frees it after its last user."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __repr__(self) -> str:
        return f"Loop({str(self.path)!r}, {'open' if self.fd >= 0 else 'closed'})"


async def attach_loop(path: Path, readonly: bool = True, *, direct: bool = False) -> Loop:
    """Attach the regular file ``path`` to a free loop device.

    ``direct`` bypasses the file's page cache.  This saves memory for a single user; but zones that share an
    image would each read it from the disk again, therefore the default is off.

    Missing: no such file; Invalid: not a regular file of whole sectors; Exhausted: no free device.
    """
    attempt = asyncio.get_running_loop().run_in_executor(None, take_loop, path, readonly, direct)
    try:
        return await join(attempt)
    except asyncio.CancelledError:
        attempt.add_done_callback(_discard)
        raise


def _discard(attempt: asyncio.Future[Loop]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def take_loop(path: Path, readonly: bool = True, direct: bool = False) -> Loop:
    """``attach_loop`` for callers in their own thread."""
    file = _open_file(path, readonly)
    try:
        return _configure_free(path, file, readonly, direct)
    finally:
        os.close(file)  # the device has its own reference


async def attach_device(path: Path, readonly: bool) -> Loop:
    """Claim the block device ``path`` for a loop device on it.  Errors of ``claim`` and ``attach_loop``."""
    attempt = asyncio.get_running_loop().run_in_executor(None, _take_device, path, readonly)
    try:
        return await join(attempt)
    except asyncio.CancelledError:
        attempt.add_done_callback(_discard)
        raise


def _take_device(path: Path, readonly: bool) -> Loop:
    claimed = claim(path, readonly=readonly)
    try:
        return _configure_free(path, claimed.fd, readonly, direct=True)
    finally:
        claimed.close()  # the device has its own reference, including the claim


def keep_loop(loop: Loop, *, kept: bool) -> None:
    """Let a loop device outlive its open descriptors, or no longer.  A vanished device is no error."""
    try:
        values = list(_INFO.unpack(fcntl.ioctl(loop.fd, _GET_STATUS, bytes(_INFO.size))))
        values[_FLAGS] = values[_FLAGS] & ~_AUTOCLEAR | (0 if kept else _AUTOCLEAR)
        fcntl.ioctl(loop.fd, _SET_STATUS, _INFO.pack(*values))
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.EBADF):
            raise Broken("keep loop device", str(loop.path), error.strerror or str(error)) from error


def adopt_loop(device: Path, file: tuple[int, int]) -> Loop | None:
    """Hold ``device`` again if its backing file is still ``file`` (st_dev, st_ino); None otherwise."""
    try:
        fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # gone, or no longer a device
    try:
        info = _INFO.unpack(fcntl.ioctl(fd, _GET_STATUS, bytes(_INFO.size)))
    except OSError:
        os.close(fd)
        return None  # ENXIO: no backing file
    if _file_id(info) != file:
        os.close(fd)
        return None
    return Loop(device, fd)


def backing_file(loop: Loop) -> tuple[int, int]:
    """The backing file, as (st_dev, st_ino)."""
    return _file_id(_INFO.unpack(fcntl.ioctl(loop.fd, _GET_STATUS, bytes(_INFO.size))))


def _file_id(info: tuple[int, ...]) -> tuple[int, int]:
    """The file's id.  The kernel writes lo_device by huge_encode_dev, the format of st_dev in stat(2)."""
    return info[0], info[1]


def _open_file(path: Path, readonly: bool) -> int:
    try:
        file = os.open(path, (os.O_RDONLY if readonly else os.O_RDWR) | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise Missing("attach loop device", str(path), "no such file") from None
    except OSError as error:
        raise Broken("attach loop device", str(path), error.strerror or str(error)) from error
    status = os.fstat(file)
    cause = ""
    if not stat.S_ISREG(status.st_mode):
        cause = "not a regular file"
    elif status.st_size == 0 or status.st_size % _SECTOR_BYTES:
        cause = f"size {status.st_size} is not a positive multiple of {_SECTOR_BYTES}"
    if cause:
        os.close(file)
        raise Invalid("attach loop device", str(path), cause)
    return file


def _configure_free(path: Path, file: int, readonly: bool, direct: bool) -> Loop:
    flags = _AUTOCLEAR | (_READ_ONLY if readonly else 0) | (_DIRECT_IO if direct else 0)
    name = os.fsencode(path)[:63]
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, name, b"", b"", 0, 0)
    config = _CONFIG.pack(file, 0, info)
    deadline = time.monotonic() + _RETRY_SECONDS
    while time.monotonic() < deadline:
        with _taking:
            loop = _try_one(path, config, readonly)
        if loop is not None:
            if direct:
                _check_direct(loop.fd)
            return loop
    raise Exhausted("attach loop device", str(path), "every free loop device was taken by others")


def _check_direct(fd: int) -> None:
    """Use the page cache if a direct read fails: overlayfs promises direct I/O even for files without it."""
    try:
        os.pread(fd, _SECTOR_BYTES, 0)
    except OSError:
        fcntl.ioctl(fd, _SET_DIRECT_IO, 0)


def _try_one(path: Path, config: bytes, readonly: bool) -> Loop | None:
    """Try to take the device that the kernel reports as free; None: another process was faster."""
    try:
        with open(_CONTROL, "rb", buffering=0) as control:
            device = Path(f"/dev/loop{fcntl.ioctl(control.fileno(), _GET_FREE)}")
        fd = os.open(device, (os.O_RDONLY if readonly else os.O_RDWR) | os.O_CLOEXEC)
    except OSError as error:
        cause = error.strerror or str(error)
        raise Broken("attach loop device", str(path), cause, "is the loop driver there?") from error
    try:
        fcntl.ioctl(fd, _SET_CONFIG, config)
        return Loop(device, fd)
    except OSError as error:
        with suppress(OSError):
            os.close(fd)
        if error.errno == errno.EBUSY:
            return None
        raise Broken("attach loop device", f"{path} to {device}", error.strerror or str(error)) from error
