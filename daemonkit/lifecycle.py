"""From ``main()`` to the event loop and back: signals, file descriptors, the exit status."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from daemonkit import ready
from daemonkit.faults import Broken, Fault

log = logging.getLogger(__name__)

_FILES = 65_536
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(serve: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run ``serve(stop)`` until it returns; the exit status: 0 orderly, 1 a fault (logged).

    SIGTERM or SIGINT sets ``stop``: serve then finishes what is open and returns.  A second one
    cancels it.  Anything but Faults, alone or in groups, is a bug and keeps its traceback.
    """
    _raise_file_limit()
    # What was imported stays for good: full collections need not walk it, some 30 ms each time.
    gc.freeze()
    try:
        asyncio.run(_supervise(serve))
    except asyncio.CancelledError:
        log.error("stopped before everything was finished")
        return 1
    except Exception as error:
        faults = _faults(error)
        for fault in faults:
            log.error("%s", fault)
        if not faults:
            log.exception("unexpected error")
        return 1
    return 0


def _faults(error: BaseException) -> list[Fault]:
    """A fault, or those that a task group has wrapped; none when there is anything else among them."""
    if isinstance(error, Fault):
        return [error]
    if not isinstance(error, BaseExceptionGroup):
        return []
    found = [_faults(one) for one in error.exceptions]
    return [fault for some in found for fault in some] if all(found) else []


def make_directories(*directories: Path) -> None:
    """The daemon's own (0700), with their parents; Broken, with the reason, when one cannot be."""
    for directory in directories:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Broken("make directory", str(directory), error.strerror or str(error)) from error


def fail(message: str) -> int:
    """Say on stderr why the daemon cannot even begin (before logging is set up); the exit status 2."""
    sys.stderr.write(f"{message}\n")
    return 2


async def _supervise(serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    task = asyncio.ensure_future(serve(stop))

    def on_signal(number: int) -> None:
        if stop.is_set():
            log.warning("%s again: stopping at once", signal.Signals(number).name)
            task.cancel()
            return
        log.info("%s: stopping", signal.Signals(number).name)
        ready.stopping()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        await task
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _raise_file_limit() -> None:
    """Each zone and connection holds several descriptors; take what the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
