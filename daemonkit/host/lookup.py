"""Looks up paths of the host in a separate process that may hang.

A file server that does not answer blocks the calling thread for good, and with it the end of a daemon.
Therefore another process (``hostc/lookup``) makes the call, and returns a descriptor (O_PATH) of the result;
later uses of the descriptor involve no file server.  A late process is killed.  It may stay as long as its
file server blocks, and counts for its owner until the end.

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
READ_MAX_BYTES = 1 << 20
"""Size limit of a file to read in bytes, as in hostc/lookup."""
_LONGEST_PATH_BYTES = 4095
"""Longest path in bytes (PATH_MAX)."""
_REQUEST_BYTES = 65_536
"""Largest request in bytes; hostc/lookup has the same limit."""
TenantOf = Callable[[str], str]


@dataclass(slots=True)
class Place:
    """The object at a path; ``mode`` has its kind alone.  ``close`` closes the descriptor."""

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
    """A lookup process.  One question at a time; the caller bounds the wait.

    OSError with the path; Broken if the process has ended.
    """

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self._process = process
        self._link = link

    @property
    def pid(self) -> int:
        return self._process.pid

    async def find(self, path: str, *, make: bool = False) -> Place:
        """Follows symbolic links and triggers automounts; ``make``: make a missing directory.

        FileExistsError: a symbolic link to nothing is in the way of the new directory.
        """
        return await self._ask("d" if make else "o", path)

    async def read(self, path: str) -> bytes:
        """A plain file's bytes, at most READ_MAX_BYTES plus one; follows symbolic links.

        EISDIR, EINVAL: no plain file; the object was not opened.
        """
        _, (copy,) = await self._answer(b"r" + _encoded(path), path)
        # In memory: no file server has a part in it.
        try:
            return os.pread(copy, READ_MAX_BYTES + 1, 0)
        finally:
            os.close(copy)

    async def copied(self, *, follow: bool) -> Place:
        """The last object, in a new copy of the mount namespace, where the process stays.

        The object must be a directory.  ``follow``: later mounts and unmounts of the host reach the copy,
        too.
        """
        return await self._ask("f" if follow else "c")

    async def make_unbindable(self, places: Mapping[int, str]) -> bool:
        """Make mounts of the last copy unbindable, paths by number; skips mounts hidden under others.

        False: a path did not exist, or its mount was just gone.
        """
        all_there = True
        lines = [b"%d %s\0" % (number, _encoded(path)) for number, path in places.items()]
        while lines:
            request = b"u"
            while lines and len(request) + len(lines[-1]) <= _REQUEST_BYTES:
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
    """Starts lookup processes, limited for each owner and in all; killed processes count until they end.

    ``program``: hostc/lookup.  An owner at its limit waits for the end of one of its own processes, or of its
    tenant's; a tenant has a share of ``most``.  ``spare``: keep a process that has answered until ``close``.
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
        """A lookup process for the block.  It is killed afterwards in any case, unless kept as spare.

        Broken if the start fails.
        """
        # Once: the owner may be forgotten before its process ends.
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
        """End the spare process."""
        for spare in self._take_spare():
            spare.end()

    def _take_spare(self) -> list[_Started]:
        spare, self._spare = self._spare, None
        if spare is None:
            return []
        if spare.process.poll() is None:
            return [spare]
        # The spare was killed from outside.
        spare.end()
        return []

    async def _start(self, started: list[_Started]) -> None:
        try:
            await complete(asyncio.to_thread(_start_helper, self._program, started))
        except OSError as error:
            hint = "build the guest parts: make zone" if isinstance(error, FileNotFoundError) else ""
            raise Broken("start", str(self._program), error.strerror or str(error), hint) from error

    def _leave_behind(self, owner: str, tenant: str, started: _Started) -> None:
        """Kill the process; the end may take as long as a file server blocks."""
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
        """Only for a process that no file server blocks."""
        self.link.close()
        os.close(self.pidfd)
        self.process.kill()
        self.process.wait()


def _start_helper(program: Path, started: list[_Started]) -> None:
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
    if len(encoded) > _LONGEST_PATH_BYTES:
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
