"""Makes device nodes in a zone's /dev from outside, through /proc/<pid>/root.

The zone owns the tree, and may attack while we work in it as root.  Therefore every component is resolved
below the zone's root without symbolic links (openat2), and /dev must be a file system of the zone's own.

Source: openat2(2), linux/openat2.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from protect.model.errors import DomainGone, ToolstackError

_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_IN_ROOT = 0x02, 0x04, 0x10

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def make_node(pid: int, name: str, device: int, readonly: bool) -> None:
    """Make /dev/<name> in the zone a block device; replaces any file that the zone put in its place."""
    with _dev_of(pid) as dev:
        for _ in range(3):  # the zone may create the file again between the two steps
            _clear(dev, name)
            try:
                os.mknod(name, stat.S_IFBLK | (0o400 if readonly else 0o600), device, dir_fd=dev)
                return
            except FileExistsError:
                continue
        raise ToolstackError("attach disk", name, "the zone keeps putting a file in its place")


def remove_node(pid: int, name: str) -> None:
    """Remove /dev/<name>; a missing node is no error."""
    with _dev_of(pid) as dev:
        _clear(dev, name)


def _clear(dev: int, name: str) -> None:
    with suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=dev)
        except IsADirectoryError as error:
            raise ToolstackError("replace device node", name, "the zone made it a directory") from error


@contextmanager
def _dev_of(pid: int) -> Iterator[int]:
    try:
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        raise DomainGone("open zone's root", str(pid), "its first process has ended") from None
    try:
        dev = _open_beneath(root, "dev")
        try:
            _check_own(root, dev, pid)
            yield dev
        finally:
            os.close(dev)
    finally:
        os.close(root)


def _check_own(root: int, dev: int, pid: int) -> None:
    mounted = os.fstat(dev).st_dev
    if mounted in (os.fstat(root).st_dev, os.stat("/dev").st_dev):
        raise ToolstackError("open zone's /dev", str(pid), "it is not a file system of the zone's own")


def _open_beneath(root: int, path: str) -> int:
    how = _OpenHow(
        flags=os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC,
        resolve=_RESOLVE_IN_ROOT | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS,
    )
    fd: int = _libc.syscall(_OPENAT2, root, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        number = ctypes.get_errno()
        cause = "is a symbolic link" if number == errno.ELOOP else os.strerror(number)
        raise ToolstackError("open zone's directory", f"/{path}", cause)
    return fd
