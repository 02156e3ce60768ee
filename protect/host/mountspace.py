"""Makes and enters the mount namespaces of zones, in separate threads.

A namespace is kept by a file on which it is mounted (nsfs), and ends without users.  A mount in a namespace
does not exist on the host: the host may remove its mount point.

Sources: mount_namespaces(7), setns(2), unshare(2), pivot_root(2).  All functions block for a short time;
OSError.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from protect.host import mounts

T = TypeVar("T")

_making = threading.Lock()
_small: list[int] = []
"""Descriptor of a namespace with a single mount, once created."""

_CLONE_NEWNS, _CLONE_FS = 0x20000, 0x200

_libc = ctypes.CDLL(None, use_errno=True)


def kept(tree: Callable[[], int], place: Path) -> None:
    """Make a namespace; the file ``place`` keeps it from then on.

    ``tree`` makes the root and the whole content: it returns a descriptor of detached mounts.

    A namespace can only be mounted in an older namespace (otherwise two could keep each other).  Some kernels
    (6.18) number namespaces by CPU; for them each CPU is tried.  The first namespace is older than all
    others.
    """
    cpus = sorted(os.sched_getaffinity(0))
    for number, cpu in enumerate([None, *cpus]):
        namespace = _born(tree, cpu)
        try:
            # Not by open_tree: its copy would keep the file, but not the namespace.
            mounts.bind(Path(f"/proc/self/fd/{namespace}"), place)
            return
        except OSError as error:
            if error.errno != errno.EINVAL or number == len(cpus):
                raise
        finally:
            os.close(namespace)


def _born(tree: Callable[[], int], cpu: int | None) -> int:
    """A descriptor of a new namespace with this tree."""
    copied = _one_mount()

    def make() -> int:
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})  # affects this thread alone
        return _with_root(tree(), copied)

    return _apart(make)


def _one_mount() -> int:
    """A descriptor of a namespace with a single mount: quick to copy even if the host has many mounts."""
    with _making:
        if not _small:
            _small.append(_apart(lambda: _with_root(mounts.clone(Path("/"), recursive=False), None)))
        return _small[0]


def _with_root(tree: int, copied: int | None) -> int:
    """Move the thread into a copy of a namespace (None: its own), with a tree as the only content.

    Returns a descriptor of the namespace; closes the descriptor of the tree.
    """
    # By descriptor: the thread's new namespace may lack /proc.
    with ExitStack() as opened:
        opened.callback(os.close, tree)
        links = os.open("/proc/thread-self/ns", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, links)
        if copied is not None:
            _enter(copied)
        _checked("unshare", _libc.unshare(_CLONE_NEWNS))
        mounts.propagate(Path("/"), mounts.MS_PRIVATE | mounts.MS_REC)
        # pivot_root(2) refuses shared mounts, and systemd makes the host's root shared.
        mounts.change(tree, propagation=mounts.MS_PRIVATE, recursive=False)
        mounts.attach_tree(tree, Path("/"))
        mounts.pivot(tree)
        mounts.propagate(Path("/"), mounts.MS_SHARED)
        return os.open("mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=links)


def inside(namespace: Path, work: Callable[[], T]) -> T:
    """Run ``work`` in a namespace; paths are resolved there."""
    number = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)

    def enter() -> T:
        _enter(number)
        return work()

    try:
        return _apart(enter)
    finally:
        os.close(number)


def listing(namespace: Path) -> int:
    """The namespace's mountinfo (proc(5)): POLLPRI reports changes, pread() from 0 the present mounts."""
    number = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)

    def enter() -> int:
        # The thread's new namespace may lack /proc.
        own = os.open("/proc/thread-self", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _enter(number)
            return os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=own)
        finally:
            os.close(own)

    try:
        return _apart(enter)
    finally:
        os.close(number)


def _enter(namespace: int) -> None:
    # Threads share their root and directory; a thread in another namespace needs its own.
    _checked("unshare", _libc.unshare(_CLONE_FS))
    _checked("setns", _libc.setns(namespace, _CLONE_NEWNS))


def _apart(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread that ends afterwards: no other thread's namespace changes."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # re-raised by the caller
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
