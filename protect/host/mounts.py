"""The only user of mount calls: trees of mounts are made detached, given their attributes, and then attached.

Sources: open_tree(2), move_mount(2), mount_setattr(2), mount(2), umount(2); linux/mount.h.  All functions
block for a short time: call them in a thread.  OSError with the path.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC = 1 << 12, 1 << 14
MS_UNBINDABLE, MS_PRIVATE, MS_SLAVE, MS_SHARED = 1 << 17, 1 << 18, 1 << 19, 1 << 20
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
MOUNT_ATTR_IDMAP = 0x100000

_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 4, 0x40
_AT_FDCWD = -100
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8

_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH, _CACHED = 2, 4, 8, 0x20

_PIVOT_ROOT = {"x86_64": 155}.get(os.uname().machine, 41)

_libc = ctypes.CDLL(None, use_errno=True)


class _HowToFind(ctypes.Structure):
    _fields_ = [  # noqa: RUF012 - ctypes' own way
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    ]


class _MountAttr(ctypes.Structure):
    _fields_ = [  # noqa: RUF012 - ctypes' own way
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def clone(source: Path | int, *, recursive: bool) -> int:
    """A descriptor of a detached copy of the mounts at a path, or at an open file.

    The copy vanishes with the descriptor unless attached before.  It omits unbindable mounts, with all mounts
    below them.
    """
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    if isinstance(source, int):
        return _call("open_tree", f"descriptor {source}", source, b"", flags | _AT_EMPTY_PATH)
    return _call("open_tree", str(source), _AT_FDCWD, os.fsencode(source), flags)


def change(tree: int, *, add: int = 0, propagation: int = 0, users: int = 0, recursive: bool) -> None:
    """Set attributes and propagation of a tree's top, or of the whole tree; an error changes no mount.

    ``users``: descriptor of the user namespace that maps the ids (MOUNT_ATTR_IDMAP).
    """
    wanted = _MountAttr(attr_set=add, propagation=propagation, userns_fd=users)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    _call("mount_setattr", f"descriptor {tree}", tree, b"", flags, ctypes.byref(wanted), size)


def attach_tree(tree: int, place: Path) -> None:
    """Attach a tree at a path, whose last part may not be a symbolic link."""
    path = os.fsencode(place)
    _call("move_mount", str(place), tree, b"", _AT_FDCWD, path, _MOVE_MOUNT_F_EMPTY_PATH)


def attach_at(tree: int, place: int) -> None:
    """Attach a tree at an open file (O_PATH)."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
    _call("move_mount", f"descriptor {place}", tree, b"", place, b"", flags)


def found_below(top: int, path: str, *, ask: bool) -> int:
    """A descriptor (O_PATH) of the topmost mount, or else the file, at a path below an open directory.

    No symbolic link is followed.  ``ask``: may query file systems.  Without, paths outside the kernel's cache
    give EAGAIN; therefore no file server can block the call.
    """
    resolve = _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH | (0 if ask else _CACHED)
    how = _HowToFind(flags=os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, resolve=resolve)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    number = ctypes.c_long(_OPENAT2)
    return _call("syscall", path, number, top, os.fsencode(path), ctypes.byref(how), size)


def tmpfs(place: Path, options: str) -> None:
    """A detached tmpfs as a base for other mounts."""
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _call("mount", str(place), b"tmpfs", os.fsencode(place), b"tmpfs", flags, options.encode())


def propagate(place: Path, propagation: int) -> None:
    """Set the propagation of the mount at a path (mount_namespaces(7)); MS_REC includes mounts below it."""
    _call("mount", str(place), None, os.fsencode(place), None, ctypes.c_ulong(propagation), None)


def bind(source: Path, place: Path) -> None:
    """Mount the file or directory ``source`` at a second place (a bind mount)."""
    _call("mount", str(place), os.fsencode(source), os.fsencode(place), None, ctypes.c_ulong(MS_BIND), None)


def pivot(root: int) -> None:
    """Make an attached tree the root of the caller's own mount namespace; unmount everything else."""
    os.fchdir(root)
    _call("syscall", f"descriptor {root}", ctypes.c_long(_PIVOT_ROOT), b".", b".")
    _call("umount2", "/", b".", _MNT_DETACH)
    os.chdir("/")


def unmount(place: Path) -> bool:
    """Unmount the topmost mount at a path, with all mounts below it; False: no mount at the path."""
    try:
        _call("umount2", str(place), os.fsencode(place), _MNT_DETACH | _UMOUNT_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return False
        raise
    return True


def unmount_at(place: int) -> None:
    """Unmount the mount with this open root, and all mounts below it; changes the thread's directory."""
    os.fchdir(place)
    _call("umount2", f"descriptor {place}", b".", _MNT_DETACH)


def _call(name: str, subject: str, *arguments: object) -> int:
    result: int = getattr(_libc, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}", subject)
    return result
