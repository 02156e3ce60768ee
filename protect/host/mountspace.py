"""Makes and enters the mount namespaces of zones, in threads of their own.

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
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from protect.host import mounts

T = TypeVar("T")

_making = threading.Lock()
_small: list[int] = []
"""Descriptor of a namespace with a single mount, once there is one."""

_CLONE_NEWNS, _CLONE_FS = 0x20000, 0x200

_libc = ctypes.CDLL(None, use_errno=True)


def kept(tree: Callable[[], int], place: Path) -> None:
    """Make a namespace, which the file ``place`` keeps from then on.

    Its root, and all that is in it, is what ``tree`` makes: a descriptor of mounts attached nowhere.

    A namespace can only be mounted in one that is older (else two could keep each other), and some kernels
    (6.18) number them by CPU: there each CPU is tried.  The first namespace is older than any.
    """
    cpus = sorted(os.sched_getaffinity(0))
    for number, cpu in enumerate([None, *cpus]):
        namespace = _born(tree, cpu)
        try:
            # Not by the calls that copy trees first: these keep the file, and not the namespace.
            mounts.bind(Path(f"/proc/self/fd/{namespace}"), place)
            return
        except OSError as error:
            if error.errno != errno.EINVAL or number == len(cpus):
                raise
        finally:
            os.close(namespace)


def _born(tree: Callable[[], int], cpu: int | None) -> int:
    """A descriptor of it."""
    copied = _one_mount()

    def make() -> int:
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})  # of this thread alone
        return _with_root(tree(), copied)

    return _apart(make)


def _one_mount() -> int:
    """A descriptor of a namespace with a single mount, which is quick to copy however many the host has."""
    with _making:
        if not _small:
            _small.append(_apart(lambda: _with_root(mounts.clone(Path("/"), recursive=False), None)))
        return _small[0]


def _with_root(tree: int, copied: int | None) -> int:
    """Move the thread into a copy of a namespace (None: its own), and make a tree all that is in it.

    A descriptor of it; that of the tree is closed.
    """
    # By descriptor: there may be no /proc where the thread goes.
    with ExitStack() as opened:
        opened.callback(os.close, tree)
        links = os.open("/proc/thread-self/ns", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, links)
        if copied is not None:
            _enter(copied)
        _checked("unshare", _libc.unshare(_CLONE_NEWNS))
        mounts.propagate(Path("/"), mounts.MS_PRIVATE | mounts.MS_REC)
        # pivot_root(2) takes no shared mount, and systemd makes the host's root one.
        mounts.change(tree, propagation=mounts.MS_PRIVATE, recursive=False)
        mounts.attach(tree, Path("/"))
        mounts.pivot(tree)
        mounts.propagate(Path("/"), mounts.MS_SHARED)
        return os.open("mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=links)


def inside(namespace: Path, work: Callable[[], T]) -> T:
    """Run ``work`` in a namespace, where paths are its own."""
    number = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)

    def enter() -> T:
        _enter(number)
        return work()

    try:
        return _apart(enter)
    finally:
        os.close(number)


def _enter(namespace: int) -> None:
    # Threads share their root and directory, which a namespace is to have for itself.
    _checked("unshare", _libc.unshare(_CLONE_FS))
    _checked("setns", _libc.setns(namespace, _CLONE_NEWNS))


def _apart(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread that ends afterwards, so that no other thread's namespace changes."""
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
