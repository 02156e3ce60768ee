"""Netlink work in a network namespace: in a thread of its own, never in a forked process.

A thread that has entered another namespace must not be used for anything else, so each piece of
work gets a fresh thread that ends with it.  Nothing is forked: that and gRPC's threads do not mix.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from daemonkit.faults import Broken, Missing

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_AT_ONCE = 8

_libc = ctypes.CDLL(None, use_errno=True)
_slots = threading.BoundedSemaphore(_AT_ONCE)
"""The kernel does one such thing at a time anyway (rtnl); more threads would only wait in it."""


async def in_namespace(netns: str | None, work: Callable[[IPRoute], T]) -> T:
    """``work`` with a netlink socket of the namespace at the path ``netns`` (None: our own).

    The work is done to its end even when the caller is cancelled.  Missing: no such namespace;
    NetlinkError as ``work`` lets it pass.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # T may itself include None

    def run() -> None:
        result, error = None, None
        try:
            with _slots:
                result = _work_in(netns, work)
        except BaseException as caught:  # handed over to the caller, whatever it is
            error = caught
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop has been closed: nobody waits

    threading.Thread(target=run, name="netlink", daemon=True).start()
    return await asyncio.shield(done)


def _work_in(netns: str | None, work: Callable[[IPRoute], T]) -> T:
    if netns is not None:
        _enter(netns)
    # no multicast groups: this socket must not overflow with other people's events
    with IPRoute(groups=0) as netlink:
        return work(netlink)


def _enter(netns: str) -> None:
    try:
        fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Missing("enter network namespace", netns, "no such file") from None
    except OSError as error:
        raise Broken("enter network namespace", netns, error.strerror or str(error)) from error
    try:
        if _libc.setns(fd, _CLONE_NEWNET) != 0:
            raise Missing("enter network namespace", netns, os.strerror(ctypes.get_errno()))
    finally:
        os.close(fd)


def explain(error: NetlinkError) -> str:
    """The error's words."""
    return os.strerror(error.code) if error.code else str(error)
