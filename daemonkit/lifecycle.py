"""The process of a daemon: event loop, signals, exit status, directories, service manager."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import fcntl
import gc
import io
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from daemonkit.faults import Broken, Fault, Refused
from daemonkit.host import memory

log = logging.getLogger(__name__)

_OPEN_FILES = 65_536
_OBJECTS = 10_000
"""New objects between two collections of reference cycles."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_until_signal(serve: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run ``serve(stop)`` until it returns; the exit status: 0 on return, 1 on an exception (logged).

    SIGTERM or SIGINT sets ``stop``: serve then finishes open work and returns.  A second signal cancels
    serve. A Fault, or a group of faults, is logged as one line each; other exceptions are bugs and keep their
    traceback.
    """
    _raise_file_limit()
    memory.limit_arenas()
    # The service manager's watchdog ends a hanging daemon with SIGABRT: the handler then prints the stack.
    with contextlib.suppress(io.UnsupportedOperation):  # stderr may be no file
        faulthandler.enable()
    # Imported modules stay for good: without them a full collection saves about 30 ms.
    gc.freeze()
    # Statistics of 100 pods make about 10,000 short-lived objects. The default threshold (700) would scan
    # them 15 times, and then everything else too, because frozen objects do not count as old.
    gc.set_threshold(_OBJECTS)
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


def make_directories(*directories: Path) -> None:
    """Make the daemon's own directories (0700), and their parents; Broken on failure."""
    for directory in directories:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Broken("make directory", str(directory), error.strerror or str(error)) from error


def private_database(path: Path) -> None:
    """Make a database file readable by its owner alone (0600), or make an existing file private; Broken.

    SQLite gives its other files (``-wal``, ``-shm``) the mode of this file.  Call before SQLite opens the
    file: closing any descriptor of a file drops the process's locks on it (fcntl(2)).
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            with contextlib.suppress(FileNotFoundError):
                each.chmod(0o600)  # a restored backup may have another mode
    except OSError as error:
        raise Broken("open state", str(path), error.strerror or str(error)) from error


@contextlib.contextmanager
def hold_lock(path: Path, refusal: Refused) -> Iterator[None]:
    """Hold the lock file ``path`` (flock(2)); raises ``refusal`` if another live process holds the lock.

    The kernel frees the lock at any end of its owner; the file itself stays.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal from None
        yield
    finally:
        os.close(descriptor)


def notify_ready(status: str = "") -> bool:
    """Tell the service manager that the daemon serves; False without a service manager."""
    return _notify(f"READY=1\nSTATUS={status}" if status else "READY=1")


def stopping() -> bool:
    """Tell the service manager that the daemon stops; False without a service manager."""
    return _notify("STOPPING=1")


def _watchdog_seconds() -> float:
    """Seconds between two messages to the service manager's watchdog, half of its limit; 0: no watchdog.

    Source: sd_watchdog_enabled(3).
    """
    try:
        allowed = int(os.environ.get("WATCHDOG_USEC", ""))
        meant = int(os.environ.get("WATCHDOG_PID", "") or os.getpid())
    except ValueError:
        return 0.0
    return allowed / 2e6 if meant == os.getpid() else 0.0


async def _feed_watchdog() -> None:
    """Feed the watchdog from the event loop alone: a daemon with a hanging loop is restarted."""
    seconds = _watchdog_seconds()
    while seconds > 0:
        _notify("WATCHDOG=1")
        await asyncio.sleep(seconds)


def _notify(state: str) -> bool:
    """Send ``state`` (lines of ``KEY=value``) to NOTIFY_SOCKET: sd_notify(3), without libsystemd.

    An unreachable manager is logged and otherwise ignored: it must not end the daemon.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        # A full receive queue must not block the event loop.
        sock.setblocking(False)
        try:
            sock.sendto(state.encode(), address)
        except OSError as error:
            log.warning("the service manager was not told %s: %s", state.split("\n")[0], error)
            return False
    return True


async def _supervise(serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    task = asyncio.ensure_future(serve(stop))
    keeping = [asyncio.ensure_future(_feed_watchdog()), asyncio.ensure_future(memory.keep_small())]

    def on_signal(number: int) -> None:
        if stop.is_set():
            log.warning("%s again: stopping at once", signal.Signals(number).name)
            task.cancel()
            return
        log.info("%s: stopping", signal.Signals(number).name)
        stopping()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        await task
    finally:
        for each in keeping:
            each.cancel()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _faults(error: BaseException) -> list[Fault]:
    """The faults in an error, unwrapped from task groups; empty if the error holds any other exception."""
    if isinstance(error, Fault):
        return [error]
    if not isinstance(error, BaseExceptionGroup):
        return []
    found = [_faults(one) for one in error.exceptions]
    return [fault for some in found for fault in some] if all(found) else []


def _raise_file_limit() -> None:
    """Raise the soft limit of open files: each zone and connection holds several."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
