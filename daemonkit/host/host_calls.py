"""Opens files named by a caller, which may be no plain files, or on a file system that hangs."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_SELF = Path("/proc/self/fd")


def open_plain(path: str | Path, flags: int, mode: int = 0o600, *, follow: bool = False) -> int:
    """A descriptor of a plain file; OSError for directories (EISDIR), pipes, devices and sockets (EINVAL).

    Other kinds are never opened, because opening a pipe or a device has effects.  ``flags``: as in open(2);
    with O_CREAT a missing file is made.  ``follow``: whether the last part of the path may be a symbolic
    link.
    """
    links = 0 if follow else os.O_NOFOLLOW
    create = flags & os.O_CREAT
    rest = flags & ~os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC | links)
    except FileNotFoundError:
        if not create:
            raise
        return os.open(path, rest | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        mode = os.fstat(place).st_mode
        if not stat.S_ISREG(mode):
            if stat.S_ISDIR(mode):
                raise OSError(errno.EISDIR, "it is a directory, not a plain file", str(path))
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        return os.open(_SELF / str(place), rest)
    finally:
        os.close(place)


class HostCalls:
    """Runs calls that a file system may block, each in a thread, with a time limit.

    A blocked call keeps its thread.  Until it returns, calls with the same key do not begin; the number of
    calls of one owner is limited, too. A waiting call waits at most its own time limit.
    """

    def __init__(self, seconds: float = 10.0, each: int = 16, most: int = 4096) -> None:
        """``seconds``: time limit of a call; ``each``, ``most``: limit of calls for an owner, and in all."""
        self._seconds = seconds
        self._each = each
        self._most = most
        self._under_way: set[str] = set()
        self._owners: Counter[str] = Counter()
        self._departures = asyncio.Event()

    async def run(
        self,
        key: str,
        work: Callable[[], T],
        late: Callable[[T], object] | None = None,
        owner: str = "",
    ) -> T:
        """The result of ``work``, or its exception.

        OSError: ETIMEDOUT if the call does not return in time, EBUSY if an earlier call, or too many, have
        not returned. ``late`` receives a result after the time limit.  ``owner``: counts calls together;
        default: the key.
        """
        owner = owner or key
        await self._earlier(key, owner)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def take(result: T | None, error: BaseException | None) -> None:
            self._depart(key, owner)
            if answer.done():
                if error is None and late is not None:
                    late(result)  # type: ignore[arg-type]  # it is one, as there is no error
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def call() -> None:
            result, failure = None, None
            try:
                result = work()
            except BaseException as error:  # raised at the waiter
                failure = error
            with suppress(RuntimeError):  # the loop and the daemon have ended
                loop.call_soon_threadsafe(take, result, failure)

        self._under_way.add(key)
        self._owners[owner] += 1
        # Not a pool, because a pool waits for its threads at the end of the program.
        threading.Thread(target=call, name="host call", daemon=True).start()
        try:
            async with asyncio.timeout(self._seconds):
                return await answer
        except TimeoutError:
            cause = f"its file system did not answer within {self._seconds:g} s"
            raise OSError(errno.ETIMEDOUT, cause, key) from None

    async def _earlier(self, key: str, owner: str) -> None:
        """Wait until a call may begin; EBUSY after the time limit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                while self._held(key, owner):
                    self._departures.clear()
                    await self._departures.wait()
        if self._held(key, owner):
            raise OSError(errno.EBUSY, "an earlier call to its file system has not come back", key)

    def _held(self, key: str, owner: str) -> bool:
        return (
            key in self._under_way or self._owners[owner] >= self._each or len(self._under_way) >= self._most
        )

    def _depart(self, key: str, owner: str) -> None:
        self._under_way.remove(key)
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]
        self._departures.set()
