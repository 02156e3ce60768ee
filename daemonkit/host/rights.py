"""Drops rights of the calling process, for good: namespaces, ids, capabilities, limits, system calls.

For new children of a process with one thread.  OSError names the failed step; the child must then end.

Sources: setns(2), pivot_root(2), open_tree(2), capabilities(7), credentials(7), prctl(2), seccomp(2).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence

NAMESPACES = {
    "mnt": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "net": 0x40000000,
}
"""Names in /proc/<pid>/ns, and their flags."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 1 << 12
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_MNT_DETACH = 2
_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same on all machines
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_SECCOMP = 1, 4, 15, 22
_PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 24, 28, 38
# NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, and all bits locked, KEEP_CAPS included.
_SECUREBITS = 0b1110_1111
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
_MOST_HANDLES = 1 << 30

_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]  # noqa: RUF012 - ctypes' own way


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]  # noqa: RUF012 - ctypes' own way


class CallFilter:
    """A compiled seccomp filter; a child can set the filter without allocating memory."""

    def __init__(self, code: bytes) -> None:
        self._code = ctypes.create_string_buffer(code, len(code))
        self._program = _Program(len(code) // 8, ctypes.addressof(self._code))

    def set(self) -> None:
        """Filter the system calls of this process, and of all its children."""
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(self._program))


def namespaces(names: Iterable[str], fill: Callable[[], None]) -> dict[str, int]:
    """New namespaces as descriptors, by name; ``fill`` runs inside the namespaces."""
    names = tuple(names)
    root, place = (os.open(one, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for one in ("/", "."))
    home = _opened(names)
    mask = os.umask(0o022)
    try:
        unshare(names)
        made = _opened(names)
        try:
            fill()
        finally:
            enter(home)
            os.fchdir(root)
            os.chroot(".")
            os.fchdir(place)
    finally:
        os.umask(mask)
        for handle in (root, place, *home.values()):
            os.close(handle)
    return made


def _opened(names: Iterable[str]) -> dict[str, int]:
    return {name: os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names}


def unshare(names: Iterable[str]) -> None:
    """Go on in new namespaces."""
    flags = 0
    for name in names:
        flags |= NAMESPACES[name]
    _check_result(_libc.unshare(flags), "make namespaces")


def enter(made: Mapping[str, int]) -> None:
    """Enter these namespaces; with ``mnt``, also the root directory of the mount namespace."""
    for name, handle in made.items():
        _check_result(_libc.setns(handle, NAMESPACES[name]), f"enter the {name} namespace")


def mount(source: str | None, place: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    given = [None if one is None else os.fsencode(one) for one in (source, place, kind)]
    _check_result(_libc.mount(*given, ctypes.c_ulong(flags), options.encode() or None), f"mount {place}")


def keep_mounts() -> None:
    """Stop mount propagation between this mount namespace and others."""
    mount(None, "/", None, _MS_REC | _MS_PRIVATE)


def clone(handle: int) -> int:
    """A detached bind mount of an open file; needs to be closed."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH
    made = _libc.syscall(ctypes.c_long(_OPEN_TREE), handle, b"", flags)
    _check_result(made, "clone a mount")
    return int(made)


def attach_mount(mounted: int, place: str) -> None:
    """Put a detached mount at a path."""
    given = mounted, b"", _AT_FDCWD, os.fsencode(place), _MOVE_MOUNT_F_EMPTY_PATH
    _check_result(_libc.syscall(ctypes.c_long(_MOVE_MOUNT), *given), f"mount {place}")


def pivot(top: str) -> None:
    """Make a mount the root directory of this mount namespace; all other mounts go."""
    os.chdir(top)
    _check_result(_libc.pivot_root(b".", b"."), "make a root directory")
    _check_result(_libc.umount2(b".", _MNT_DETACH), "leave the host's root directory")
    os.chdir("/")


def close_others(given: Sequence[int]) -> None:
    """Close all descriptors except the standard ones and the given ones."""
    last = 2
    for handle in (*sorted(given), _MOST_HANDLES):
        os.closerange(last + 1, handle)
        last = handle


def limit(most: Mapping[int, int]) -> None:
    """Lower resource limits, by their numbers; lower limits stay."""
    for kind, wanted in most.items():
        now = resource.getrlimit(kind)[1]
        bound = wanted if now == resource.RLIM_INFINITY else min(wanted, now)
        resource.setrlimit(kind, (bound, bound))


def renounce() -> None:
    """Prevent all child processes from ever getting a capability or a group; this process keeps its own.

    A child that becomes() another user then has none.
    """
    one = 0
    while _libc.prctl(_PR_CAPBSET_DROP, one, 0, 0, 0) == 0:
        one += 1
    if not one:
        raise OSError(ctypes.get_errno(), "cannot drop capabilities")
    _prctl(_PR_SET_SECUREBITS, _SECUREBITS)
    os.setgroups(())


def become(number: int) -> None:
    """Become a user without capabilities, in a child after renounce()."""
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
    header, nothing = _Header(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check_result(_libc.capset(ctypes.byref(header), nothing), "drop capabilities")


def no_new_privileges() -> None:
    """Prevent programs started by this process or its children from gaining rights."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def hide() -> None:
    """Hide this process from other processes of the same user."""
    _prctl(_PR_SET_DUMPABLE, 0)


def end_with(parent: int) -> None:
    """Die with the parent; a change of ids resets the signal.  Raises if the parent has ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError("the parent has ended")


def name(text: str) -> None:
    """Set the process's name in lists: the first 15 bytes."""
    _check_result(_libc.prctl(_PR_SET_NAME, text.encode(), 0, 0, 0), "set the name")


def _prctl(option: int, value: int, more: object = 0) -> None:
    _check_result(_libc.prctl(option, ctypes.c_ulong(value), more, 0, 0), f"prctl {option}")


def _check_result(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")
