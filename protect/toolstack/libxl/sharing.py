"""Shares directories with domains: a file server (``hostc/fileserver``) for each domain, over a vchan.

A server is not our child, and outlives us.  ``<folder>/<domain's uuid>/`` has its records: ``namespace``,
written before the domain's creation, names the shared namespace; ``pid`` the server's process and its
session; ``log`` the reason of its end; ``lock`` is held during its start.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Container
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from daemonkit.faults import Exists, Missing, Refused
from daemonkit.host.children import settle
from daemonkit.tasks import complete
from protect.host.groups import ServerGroups
from protect.model.checks import printable
from protect.model.errors import ToolstackError
from protect.model.toolstack import ShareEnd
from protect.toolstack.deaths import Listeners
from protect.toolstack.libxl.capacity.rings import SHARING_ORDER
from protect.toolstack.pidfd_process import PidfdProcess

log = logging.getLogger(__name__)

ENVIRONMENT = {"XENPOD_SHARED": "vchan"}
"""Environment of the agent."""

_LAUNCH_SECONDS = 30.0
_END_SECONDS = 5.0
_REASON_CHARACTERS = 256


@dataclass(slots=True)
class _Server:
    """A file server, running or ended by itself."""

    uuid: UUID
    session: str
    process: PidfdProcess | None
    end: ShareEnd | None = None
    ending: bool = False
    """We end the server; the end is no news."""
    watch: asyncio.Task[None] | None = None


async def _ended(process: PidfdProcess) -> None:
    """Wait for the process's end, with a limit: an unresponsive file server can block the end (ADR 30)."""
    try:
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
    except TimeoutError:
        log.warning("file server %d is held by what it serves, and left behind", process.pid)


@dataclass(slots=True)
class Sharing:
    """launcher: ``hostc/fileserver``; folder: records of the servers; memory: limit of each in bytes."""

    launcher: Path
    folder: Path
    memory: int
    _servers: dict[UUID, _Server] = field(default_factory=dict)
    _listeners: Listeners[ShareEnd] = field(default_factory=Listeners)
    _groups: ServerGroups = field(init=False)

    def __post_init__(self) -> None:
        self._groups = ServerGroups(self.memory)

    # -- with the toolstack

    async def adopt(self, present: Container[UUID]) -> None:
        """Find the servers of an earlier daemon; end the servers of domains that are gone.  OSError."""
        await asyncio.to_thread(self.folder.mkdir, 0o700, parents=True, exist_ok=True)
        for name in await asyncio.to_thread(os.listdir, self.folder):
            uuid = UUID(name)
            await asyncio.to_thread(self._wait_for_launcher, uuid)
            if uuid in present:
                self._take(uuid)
            else:
                await self.forget(uuid)

    @property
    def most_bytes(self) -> int:
        """Memory limit of all running servers together, in bytes of dom0."""
        return self.memory * sum(server.end is None for server in self._servers.values())

    def listen(self) -> AsyncIterator[ShareEnd]:
        """Ends from now on; the ends of servers without a successor come first."""
        return self._listeners.listen(server.end for server in self._servers.values() if server.end)

    async def close(self) -> None:
        """Release the servers; they go on."""
        for server in self._servers.values():
            self._release(server)
        self._servers.clear()
        self._listeners.close()

    # -- of a domain

    def enter(self, uuid: UUID, domain: str, namespace: Path) -> None:
        """Record the domain's shared namespace before its creation; ``forget`` removes the record.

        If we end before, ``adopt`` removes it.  Missing: the directory cannot be shared; Exists; OSError.
        """
        if not namespace.is_file():
            raise Missing("create domain", domain, f"there is no mount namespace {namespace} to share")
        if not self.launcher.is_file():
            cause = f"no {self.launcher}, which volumes need"
            raise Missing("create domain", domain, cause, "make zone")
        place = self._place(uuid)
        try:
            place.mkdir(mode=0o700)
        except FileExistsError:
            raise Exists("create domain", domain, f"there is one of uuid {uuid}") from None
        try:
            (place / "namespace").write_text(str(namespace))
        except OSError:
            shutil.rmtree(place)
            raise

    async def serve(self, uuid: UUID, domid: int) -> str:
        """The session of the domain's server; starts a server if none runs.

        Refused: the domain shares nothing; ToolstackError.
        """
        server = self._servers.get(uuid)
        if server and server.end is None:
            return server.session
        try:
            namespace = (self._place(uuid) / "namespace").read_text()
        except FileNotFoundError:
            raise Refused("share", f"domain {domid}", "it was made without a directory to share") from None
        await complete(asyncio.to_thread(self._launch, uuid, domid, namespace))
        if server:
            self._release(server)
        started = self._take(uuid)
        if started is None:
            raise ToolstackError("share", f"domain {domid}", "its file server left no trace")
        log.info("file server %d serves domain %d", started.process.pid if started.process else 0, domid)
        return started.session

    def abandon(self, uuid: UUID) -> None:
        """Kill the domain's server: Xen cannot free the domain while its pages are mapped."""
        server = self._servers.get(uuid)
        if server and server.process:
            server.ending = True
            server.process.kill()

    async def forget(self, uuid: UUID) -> None:
        """End the domain's server, and remove its records; may be repeated."""
        server = self._servers.get(uuid) or self._take(uuid)
        if server:
            self.abandon(uuid)
            if server.process and server.end is None:
                await _ended(server.process)
            self._release(server)
            self._servers.pop(uuid, None)
        await asyncio.to_thread(self._remove, uuid)

    # -- inside

    def _place(self, uuid: UUID) -> Path:
        return self.folder / str(uuid)

    def _remove(self, uuid: UUID) -> None:
        place = self._place(uuid)
        if place.is_dir():
            self._groups.remove(str(uuid))
            shutil.rmtree(place)

    def _launch(self, uuid: UUID, domid: int, namespace: str) -> None:
        """Block until the server's process runs and is recorded.  The server then waits for the guest."""
        command = [str(self.launcher), "--namespace", namespace, "--dir", str(self._place(uuid))]
        command += ["--session", secrets.token_hex(8), "--vchan", str(domid)]
        command += ["--ring-order", str(SHARING_ORDER)]
        groups = self._groups.make(str(uuid))
        for group in groups:
            command += ["--cgroup", str(group)]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        ) as child:
            if not groups:
                settle(child.pid)
            try:
                _, said = child.communicate(timeout=_LAUNCH_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                said = f"it did not start within {_LAUNCH_SECONDS:g} s"
        if child.returncode:
            raise ToolstackError(
                "share", f"domain {domid}", said.strip() or f"it ended with {child.returncode}"
            )

    def _wait_for_launcher(self, uuid: UUID) -> None:
        """Wait for a launcher that outlived its daemon."""
        lock = os.open(self._place(uuid) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        finally:
            os.close(lock)

    def _take(self, uuid: UUID) -> _Server | None:
        """Watch the recorded server."""
        try:
            pid, started, session = (self._place(uuid) / "pid").read_text().split()
        except FileNotFoundError:
            return None
        process = PidfdProcess.open(int(pid), int(started))
        server = self._servers[uuid] = _Server(uuid, session, process)
        if process is None:
            server.end = self._reason(server)
        else:
            server.watch = asyncio.ensure_future(self._watch(server, process))
        return server

    async def _watch(self, server: _Server, process: PidfdProcess) -> None:
        await process.wait()
        server.end = self._reason(server)
        if not server.ending:
            log.warning("the file server of domain %s ended: %s", server.uuid, server.end.reason)
            self._listeners.tell(server.end)

    def _reason(self, server: _Server) -> ShareEnd:
        try:
            last = (self._place(server.uuid) / "log").read_text(errors="replace").strip().rpartition("\n")[2]
        except OSError:
            last = ""
        said = printable(last.removeprefix("share: "), _REASON_CHARACTERS)
        return ShareEnd(server.uuid, server.session, said or "it was killed")

    def _release(self, server: _Server) -> None:
        if server.watch:
            server.watch.cancel()
        if server.process:
            server.process.close()
