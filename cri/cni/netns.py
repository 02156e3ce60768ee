"""Named network namespaces like those of ip-netns(8), made in a short-lived thread.

``unshare(2)`` affects the calling thread only.  The thread therefore unshares, and binds its namespace to the
name.  pyroute2 forks for this task; a process with gRPC's threads must not fork, and pyroute2 would cost ten
megabytes of memory.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from concurrent.futures import Future
from pathlib import Path

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Broken
from daemonkit.tasks import complete

_CLONE_NEWNET = 0x40000000
_MNT_DETACH = 2
_MS_BIND = 0x1000
_MS_SHARED_ALL = 0x104000  # MS_SHARED | MS_REC
# Directories of ip-netns(8), shared with other programs.
_SYSTEM = frozenset({Path("/run/netns"), Path("/var/run/netns")})
_libc = ctypes.CDLL(None, use_errno=True)
# _share() makes the directory a shared mount if necessary: one thread at a time.
_directory = threading.Lock()


async def create_netns(path: Path) -> None:
    """Make a network namespace with the lifetime of its name ``path``."""
    try:
        # A thread left behind by a cancelled call would make the name after its removal.
        await complete(_made(path))
    except OSError as error:
        raise Broken("create network namespace", str(path), error.strerror or str(error)) from error


def is_there(path: Path) -> bool:
    """Whether ``path`` names a namespace: a killed daemon, or a reboot, leaves a name without one."""
    try:
        return path.stat().st_dev == os.stat("/proc/self/ns/net").st_dev
    except FileNotFoundError:
        return False


async def remove_netns(path: Path) -> None:
    """Remove the name, and with it the namespace; an unknown name succeeds.

    Detaching is instant; the kernel dismantles the namespace later.
    """
    await complete(asyncio.to_thread(_remove_name, path))


def _remove_name(path: Path) -> None:
    while _libc.umount2(os.fsencode(path), _MNT_DETACH) == 0:
        pass  # a name may have been bound more than once
    with _directory:
        path.unlink(missing_ok=True)
        if path.parent not in _SYSTEM and path.parent.is_dir() and not any(path.parent.iterdir()):
            # _share() mounted our directory on itself; the mount may already be gone.  Detach the mount:
            # otherwise a process with the directory open would keep the mount for good.
            _libc.umount2(os.fsencode(path.parent), _MNT_DETACH)


async def _made(path: Path) -> None:
    done: Future[None] = Future()
    threading.Thread(target=_in_thread, args=(path, done), name="netns", daemon=True).start()
    await asyncio.wrap_future(done)


def _in_thread(path: Path, done: Future[None]) -> None:
    try:
        _create(path)
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(None)


def _create(path: Path) -> None:
    _check_errno(_libc.unshare(_CLONE_NEWNET))
    with _directory:
        path.parent.mkdir(parents=True, exist_ok=True)
        _share(os.fsencode(path.parent))
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
        checkpoint("network.namespace-named")
        _check_errno(_libc.mount(b"/proc/thread-self/ns/net", os.fsencode(path), b"none", _MS_BIND, None))


def _share(directory: bytes) -> None:
    """Make the mount shared: a name removed here then vanishes in every mount namespace."""
    if _libc.mount(b"", directory, b"none", _MS_SHARED_ALL, None) != 0:  # not a mount yet
        _check_errno(_libc.mount(directory, directory, b"none", _MS_BIND, None))
        _check_errno(_libc.mount(b"", directory, b"none", _MS_SHARED_ALL, None))


def _check_errno(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
