"""Reports steps of this machine's clock (TFD_TIMER_CANCEL_ON_SET of timerfd_create(2))."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

_REALTIME = 0
_ABSOLUTE, _CANCEL_ON_SET = 1, 2
_NEVER = 1 << 40
"""Seconds since the epoch."""

_libc = ctypes.CDLL(None, use_errno=True)


class _TimerValue(ctypes.Structure):
    """struct itimerspec: an interval, and the first time."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


@contextmanager
def clock_set() -> Iterator[asyncio.Event]:
    """An event that is set at every step of CLOCK_REALTIME, but not at a slew."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    timer = _checked(_libc.timerfd_create(_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC))

    def read() -> None:
        try:
            os.read(timer, 8)
        except OSError as error:
            if error.errno == errno.ECANCELED:
                changed.set()
            elif error.errno != errno.EAGAIN:
                raise

    try:
        value = _TimerValue(0, 0, _NEVER, 0)
        flags = _ABSOLUTE | _CANCEL_ON_SET
        _checked(_libc.timerfd_settime(timer, flags, ctypes.byref(value), None))
        loop.add_reader(timer, read)
        try:
            yield changed
        finally:
            loop.remove_reader(timer)
    finally:
        os.close(timer)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
