"""Mount namespaces of zones: made, entered and left by threads of their own.

A namespace is kept by a file that it is mounted on (nsfs), and ends when nobody has that any more.  What
is mounted in one is nowhere on the host: the host may remove a directory on which something is mounted
only there.

Sources: mount_namespaces(7), setns(2), unshare(2), pivot_root(2).  Everything blocks, shortly; OSError.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from protect.host import mounts

T = TypeVar("T")

_CLONE_NEWNS, _CLONE_FS = 0x20000, 0x200

_libc = ctypes.CDLL(None, use_errno=True)


def kept(work: Callable[[], None], place: Path) -> None:
    """A new namespace, a copy of ours that ``work`` is done in, kept by the file ``place`` from now on.

    A namespace can only be mounted in one that is older (else two could keep each other), and some kernels
    (6.18) number them by CPU: there each CPU is tried.  The first namespace is older than any.
    """
    cpus = sorted(os.sched_getaffinity(0))
    for number, cpu in enumerate([None, *cpus]):
        namespace = _born(work, cpu)
        try:
            # Not by the calls that copy trees first: these keep the file, and not the namespace.
            mounts.bind(Path(f"/proc/self/fd/{namespace}"), place)
            return
        except OSError as error:
            if error.errno != errno.EINVAL or number == len(cpus):
                raise
        finally:
            os.close(namespace)


def _born(work: Callable[[], None], cpu: int | None) -> int:
    """A descriptor of it."""

    def make() -> int:
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})  # of this thread alone
        _checked("unshare", _libc.unshare(_CLONE_NEWNS))
        namespace = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            work()
        except BaseException:
            os.close(namespace)
            raise
        return namespace

    return _apart(make)


def inside(namespace: Path, work: Callable[[], T]) -> T:
    """Do something in a namespace; paths are its own there."""
    number = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)

    def enter() -> T:
        # Threads share their root and directory, which a namespace is to have for itself.
        _checked("unshare", _libc.unshare(_CLONE_FS))
        _checked("setns", _libc.setns(number, _CLONE_NEWNS))
        return work()

    try:
        return _apart(enter)
    finally:
        os.close(number)


def _apart(work: Callable[[], T]) -> T:
    """Run in a thread of its own, which ends afterwards: no other thread changes its namespace."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # it is raised where it is waited for
            errors.append(error)

    thread = threading.Thread(target=run, name="mount namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _checked(call: str, result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
