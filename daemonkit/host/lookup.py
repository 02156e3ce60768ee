"""What is at paths of the host, found by a process that can be left behind.

A file server that does not answer holds whoever asks it: a thread of ours for good, and with it the end of
a daemon.  So another process asks (``hostc/lookup``), and hands back a descriptor (O_PATH) of what it found;
whatever is done with that asks no file server any more.  One that is late is killed.  It may stay all the
same, for as long as its file server keeps it, and counts for its owner until it is gone.

Sources: open_tree(2), unix(7) SCM_RIGHTS, pidfd_open(2).
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Broken
from daemonkit.host.children import settle
from daemonkit.shares import Shares
from daemonkit.tasks import complete

_ANSWER = struct.Struct("=II")
READ_MAX = 1 << 20
"""Bytes of a file that is read, as hostc/lookup has it."""
_LONGEST = 4095
"""Longest path in bytes (PATH_MAX)."""
_REQUEST = 65_536
"""Largest request in bytes; hostc/lookup has the same limit."""
TenantOf = Callable[[str], str]


@dataclass(slots=True)
class Place:
    """What is at a path; ``mode`` has its kind alone.  The descriptor goes with ``close``."""

    descriptor: int
    mode: int

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Lookup:
    """One such process.  One question at a time; the caller bounds the wait.

    OSError with the path; Broken when the process has ended.
    """

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self._process = process
        self._link = link

    @property
    def pid(self) -> int:
        return self._process.pid

    async def find(self, path: str, *, make: bool = False) -> Place:
        """Symbolic links are followed, automounts made; ``make``: a directory where there is nothing.

        FileExistsError: to be made, but a symbolic link to nothing is there.
        """
        return await self._ask("d" if make else "o", path)

    async def read(self, path: str) -> bytes:
        """A plain file's bytes, up to READ_MAX and one more; symbolic links are followed.

        EISDIR, EINVAL: it is none, and was not opened.
        """
        _, (copy,) = await self._answer(b"r" + _encoded(path), path)
        # In memory: no file server has a part in it.
        try:
            return os.pread(copy, READ_MAX + 1, 0)
        finally:
            os.close(copy)

    async def copied(self, *, follow: bool) -> Place:
        """What was found last, in a new copy of the mount namespace, which the process is in from then on.

        It must be a directory.  ``follow``: what the host mounts and unmounts later, it does in the copy too.
        """
        return await self._ask("f" if follow else "c")

    async def make_unbindable(self, places: Mapping[int, str]) -> bool:
        """Mounts of the last copy, paths by number; those that others are mounted over are passed over.

        False: there was nothing at one of the paths, or the mount there was gone in the same moment.
        """
        all_there = True
        lines = [b"%d %s\0" % (number, _encoded(path)) for number, path in places.items()]
        while lines:
            request = b"u"
            while lines and len(request) + len(lines[-1]) <= _REQUEST:
                request += lines.pop()
            try:
                await self._answer(request, "")
            except FileNotFoundError:
                all_there = False
        return all_there

    async def _ask(self, what: str, path: str = "") -> Place:
        data, descriptors = await self._answer(what.encode() + _encoded(path), path)
        return Place(descriptors[0], _ANSWER.unpack(data)[1])

    async def _answer(self, request: bytes, path: str) -> tuple[bytes, list[int]]:
        try:
            self._link.send(request)
            await _readable(self._link)
            data, descriptors, _, _ = socket.recv_fds(self._link, _ANSWER.size, 1)
        except ConnectionError:
            data = b""
        if not data:
            raise Broken("look up", path, "the process that looks for it has ended", "see the kernel's log")
        number = int.from_bytes(data[:4], sys.byteorder)
        if number:
            raise OSError(number, os.strerror(number), path)
        return data, descriptors


class Lookups:
    """Starts them, so many at once for each owner and in all; those that were killed and are not gone count.

    ``program``: hostc/lookup.  An owner who has as many as it may waits for one of its own to go, or for one
    of its tenant's, which has a share of ``most``.  ``spare``: one that has answered is kept until ``close``.
    """

    def __init__(
        self, program: Path, tenant_of: TenantOf = str, each: int = 2, most: int = 256, spare: bool = False
    ) -> None:
        self._program = program
        self._keeps_spare = spare
        self._spare: _Started | None = None
        self._each = each
        self._shares = Shares(most)
        self._tenant_of = tenant_of
        self._there: Counter[str] = Counter()
        self._departures = asyncio.Event()

    def stuck(self, owner: str) -> bool:
        """Whether the owner has to wait until earlier processes have gone."""
        held = self._shares.held(self._tenant_of(owner))
        return self._there[owner] >= self._each or held >= self._shares.free

    @asynccontextmanager
    async def begin(self, owner: str) -> AsyncIterator[Lookup]:
        """One of them for the block.  It is killed afterwards, whatever it does, unless it is kept.

        Broken when it cannot be started.
        """
        # Once: the owner may be forgotten while its process is still there.
        tenant = self._tenant_of(owner)
        while self._there[owner] >= self._each or not self._shares.take(tenant):
            self._departures.clear()
            await self._departures.wait()
        self._there[owner] += 1
        started = self._take_spare()
        try:
            if not started:
                await self._start(started)
            yield Lookup(started[0].process, started[0].link)
            if self._keeps_spare and self._spare is None:
                self._spare = started.pop()
        finally:
            if started:
                self._leave_behind(owner, tenant, started[0])
            else:
                self._count_down(owner, tenant)

    def close(self) -> None:
        """End the spare one."""
        for spare in self._take_spare():
            spare.end()

    def _take_spare(self) -> list[_Started]:
        spare, self._spare = self._spare, None
        if spare is None:
            return []
        if spare.process.poll() is None:
            return [spare]
        # Somebody has killed it.
        spare.end()
        return []

    async def _start(self, started: list[_Started]) -> None:
        try:
            await complete(asyncio.to_thread(_start, self._program, started))
        except OSError as error:
            hint = "build the guest parts: make zone" if isinstance(error, FileNotFoundError) else ""
            raise Broken("start", str(self._program), error.strerror or str(error), hint) from error

    def _leave_behind(self, owner: str, tenant: str, started: _Started) -> None:
        """Kill the process, which may not end while a file server keeps it."""
        started.link.close()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(started.pidfd, signal.SIGKILL)
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(started.pidfd)
            os.close(started.pidfd)
            started.process.wait()
            self._count_down(owner, tenant)

        loop.add_reader(started.pidfd, gone)

    def _count_down(self, owner: str, tenant: str) -> None:
        self._shares.give(tenant)
        self._there[owner] -= 1
        if not self._there[owner]:
            del self._there[owner]
        self._departures.set()


@dataclass(frozen=True, slots=True)
class _Started:
    process: subprocess.Popen[bytes]
    pidfd: int
    link: socket.socket

    def end(self) -> None:
        """For one that nobody has left waiting for a file server."""
        self.link.close()
        os.close(self.pidfd)
        self.process.kill()
        self.process.wait()


def _start(program: Path, started: list[_Started]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            null = subprocess.DEVNULL
            process = subprocess.Popen(
                [program], stdin=theirs.fileno(), stdout=null, stderr=null, cwd="/", env={}
            )
        except BaseException:
            ours.close()
            raise
    settle(process.pid)
    ours.setblocking(False)
    started.append(_Started(process, os.pidfd_open(process.pid), ours))


def _encoded(path: str) -> bytes:
    encoded = os.fsencode(path)
    if len(encoded) > _LONGEST:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
    return encoded


async def _readable(link: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(link, _once, ready)
    try:
        await ready
    finally:
        loop.remove_reader(link)


def _once(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
