"""Runs netlink work in network namespaces, in fresh threads and never in a forked process.

A thread in another namespace must not be used for other work.  Therefore each piece of work gets a fresh
thread.  Nothing is forked: forks conflict with gRPC's threads.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from pyroute2.netlink.exceptions import NetlinkError

from daemonkit.faults import Broken, Missing
from daemonkit.tasks import complete
from protect.network.netlink import Netlink

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_AT_ONCE = 8

OWN = "/proc/self/ns/net"
"""The daemon's own namespace."""

_libc = ctypes.CDLL(None, use_errno=True)
_slots = threading.BoundedSemaphore(_AT_ONCE)
"""Limits the threads: the kernel serialises this work in any case (rtnl)."""


async def in_own_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a fresh thread, to its end even if the caller is cancelled."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            with _slots:
                result = work()
        except BaseException as error:  # any exception is passed to the caller
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=run, name="netlink", daemon=True).start()
    return await complete(asyncio.wrap_future(done))


async def in_namespace(netns: str | None, work: Callable[[Netlink], T]) -> T:
    """Run ``work`` with a netlink socket of the namespace at the path ``netns`` (None: our own).

    Missing: no such namespace; NetlinkError from ``work``.
    """

    def run() -> T:
        if netns is not None:
            with opened(netns) as fd:
                enter(fd, netns)
        with Netlink() as netlink:
            return work(netlink)

    return await in_own_thread(run)


@contextmanager
def opened(netns: str) -> Iterator[int]:
    """Open a namespace: its descriptor.  Missing: no such namespace."""
    try:
        fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Missing("enter network namespace", netns, "no such file") from None
    except OSError as error:
        raise Broken("enter network namespace", netns, error.strerror or str(error)) from error
    try:
        yield fd
    finally:
        os.close(fd)


def enter(fd: int, netns: str) -> None:
    """Move the calling thread to a namespace, for good."""
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        cause = os.strerror(ctypes.get_errno())
        raise Missing("enter network namespace", netns, cause, "is it still a network namespace?")


def explain(error: NetlinkError) -> str:
    """The text of a netlink error."""
    return os.strerror(error.code) if error.code else str(error)
