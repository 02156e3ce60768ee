"""Calls for one claim take turns, across two instances of the driver.

While one instance replaces another, the kubelet may call either.  After a timeout the kubelet calls the other
instance.  The reservation of a late prepare must not follow the release of its claim.

Each claim is a byte of a file shared by the instances, and its turn a lock of the byte (F_OFD_SETLK of
fcntl(2)).  The kernel frees the lock when the instance ends, even by a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from weakref import WeakValueDictionary

from daemonkit.faults import Broken

_FLOCK = "hhqqixxxx"  # struct flock of fcntl(2), 64 bits
_AGAIN_SECONDS = 0.05
"""Seconds between two attempts at another instance's lock: the kernel does not signal its release."""


class ClaimTurns:
    """Turns by the uids of claims."""

    def __init__(self, descriptor: int) -> None:
        """``descriptor``: this instance's own descriptor of the shared file."""
        self._descriptor = descriptor
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def of(self, uid: str) -> AsyncIterator[None]:
        """Hold the claim's turn while the block runs.  Earlier callers come first."""
        lock = self._locks.get(uid) or asyncio.Lock()
        async with self._locks.setdefault(uid, lock):
            place = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:7], "big")
            while not self._set(fcntl.F_WRLCK, place):  # noqa: ASYNC110
                await asyncio.sleep(_AGAIN_SECONDS)
            try:
                yield
            finally:
                self._set(fcntl.F_UNLCK, place)

    def _set(self, kind: int, place: int) -> bool:
        """Lock or unlock a byte; False: another instance holds the lock."""
        try:
            fcntl.fcntl(
                self._descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, place, 1, 0)
            )
        except (BlockingIOError, PermissionError):  # POSIX allows both
            return False
        return True


@contextlib.contextmanager
def claim_turns(path: Path) -> Iterator[ClaimTurns]:
    """Open the shared file.  The file stays.  Broken: opening failed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise Broken("open", str(path), error.strerror or str(error)) from error
    try:
        yield ClaimTurns(descriptor)
    finally:
        os.close(descriptor)
