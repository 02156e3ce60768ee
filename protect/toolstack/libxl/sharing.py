"""How domains share directories with dom0: each by a file server (``hostc/fileserver``), over a vchan.

A server is no child of ours to wait for, and outlives us.  ``<folder>/<domain's uuid>/`` has what is known
of it: ``namespace``, written before the domain is made, says what the domain shares; ``pid`` which process
serves it, and its session; ``log`` why it ended; ``lock`` is held while one is being started.
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
from protect.toolstack.libxl.room.rings import SHARING_ORDER
from protect.toolstack.process import PidfdProcess

log = logging.getLogger(__name__)

ENVIRONMENT = {"XENPOD_SHARED": "vchan"}
"""For the agent."""

_LAUNCH_SECONDS = 30.0
_END_SECONDS = 5.0
_REASON = 256


@dataclass(slots=True)
class _Server:
    """One that runs, or has ended by itself."""

    uuid: UUID
    session: str
    process: PidfdProcess | None
    end: ShareEnd | None = None
    ending: bool = False
    """By us: that is no news."""
    watch: asyncio.Task[None] | None = None


async def _ended(process: PidfdProcess) -> None:
    """Wait for its end, but not for ever: a file server that does not answer can hold it (ADR 30)."""
    try:
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
    except TimeoutError:
        log.warning("file server %d is held by what it serves, and left behind", process.pid)


@dataclass(slots=True)
class Sharing:
    """launcher: ``hostc/fileserver``; folder: knows the servers; memory: bytes that each may use."""

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
        """Find the servers that an earlier daemon started; end those of domains that are gone.  OSError."""
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
        """What all servers that run may use of dom0's memory."""
        return self.memory * sum(server.end is None for server in self._servers.values())

    def listen(self) -> AsyncIterator[ShareEnd]:
        """Ends from now on, and first those of servers that nothing has taken the place of."""
        return self._listeners.listen(server.end for server in self._servers.values() if server.end)

    async def close(self) -> None:
        """Servers go on."""
        for server in self._servers.values():
            self._release(server)
        self._servers.clear()
        self._listeners.close()

    # -- of a domain

    def enter(self, uuid: UUID, domain: str, namespace: Path) -> None:
        """Write down what a domain shares, before it is made; ``forget`` removes it.

        ``adopt`` does if we end before.  Missing when the directory cannot be shared; Exists; OSError.
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
        """The session of its server, which is started unless there is one.

        Refused when the domain shares nothing; ToolstackError.
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
        """Kill its server: the domain cannot be freed while others have its pages."""
        server = self._servers.get(uuid)
        if server and server.process:
            server.ending = True
            server.process.kill()

    async def forget(self, uuid: UUID) -> None:
        """End its server, and remove what is known of it; may be repeated."""
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
        """Blocks until the server's process is there, and recorded.  It then waits for the guest."""
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
        """A launcher may have outlived the daemon that ran it."""
        lock = os.open(self._place(uuid) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        finally:
            os.close(lock)

    def _take(self, uuid: UUID) -> _Server | None:
        """Watch the server that is recorded."""
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
        said = printable(last.removeprefix("share: "), _REASON)
        return ShareEnd(server.uuid, server.session, said or "it was killed")

    def _release(self, server: _Server) -> None:
        if server.watch:
            server.watch.cancel()
        if server.process:
            server.process.close()
