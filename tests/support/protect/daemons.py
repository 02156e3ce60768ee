"""The real daemons as processes of a test: started, killed, started again, on folders of the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, SOCK_NONBLOCK
from socket import socket as Socket

import grpc.aio

from daemonkit.rpc.channels import channel
from xenpod_proto.protect.v1 import protect_pb2_grpc, reservations_pb2_grpc

ROOT = Path(__file__).parents[3]
GUEST = ROOT / "zone" / "build"
_READY = 300.0  # in emulation, on a busy machine, a start has taken 120
_STOP = 60.0

Table = Mapping[str, object]


class DaemonFailed(AssertionError):
    """A daemon did not start, or ended by itself; the text ends with its log."""


@dataclass
class Daemon:
    """``python -m <module> --config <config>``; the whole output is in ``log``."""

    module: str
    config: Path
    socket: Path
    log: Path
    checkout: Path = ROOT
    """The checkout whose code runs."""
    process: asyncio.subprocess.Process | None = None
    launcher: tuple[str, ...] = ()
    """Begins the command line: a program that becomes the rest of the line."""
    environment: Mapping[str, str] = field(default_factory=dict)

    async def start(self) -> None:
        """Start the daemon, and wait for READY=1."""
        ready = self.log.with_suffix(".ready")
        ready.unlink(missing_ok=True)
        with Socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK) as notify:
            notify.bind(str(ready))
            await self._launch({"NOTIFY_SOCKET": str(ready)})
            await self._ready(notify)

    async def _launch(self, environment: Mapping[str, str]) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(*self.launcher, sys.executable, "-m", self.module, "--config", str(self.config)),
                cwd=self.checkout,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **_code(self.checkout), **self.environment, **environment},
                start_new_session=True,
            )

    async def _ready(self, notify: Socket) -> None:
        ended = asyncio.ensure_future(self._running().wait())
        try:
            while True:
                message = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(notify, 4096))
                await asyncio.wait([message, ended], timeout=_READY, return_when=asyncio.FIRST_COMPLETED)
                if not message.done():
                    message.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await message  # the loop lets go of the socket before it is closed
                    raise DaemonFailed(f"{self.module} did not become ready:\n{self.tail()}")
                if b"READY=1" in message.result():
                    return
        finally:
            ended.cancel()

    def kill(self) -> None:
        """Send SIGKILL, without waiting."""
        self._running().send_signal(signal.SIGKILL)

    async def ended(self, timeout: float = _STOP) -> int:
        """Wait for the daemon's end; the exit status (negative: the signal)."""
        async with asyncio.timeout(timeout):
            return await self._running().wait()

    async def crash(self) -> None:
        self.kill()
        await self.ended()

    async def stop(self) -> None:
        """Send SIGTERM; the daemon must end in order.

        DaemonFailed: it does not; the message shows the threads.
        """
        process = self._running()
        if process.returncode is None:
            process.terminate()
        try:
            status = await self.ended()
        except TimeoutError:
            where = _waiting(process.pid)
            process.send_signal(signal.SIGABRT)
            await self.ended()
            raise DaemonFailed(f"{self.module} did not end:\n{where}\n{self.tail()}") from None
        if status not in (0, -signal.SIGKILL):
            raise DaemonFailed(f"{self.module} ended with {status}:\n{self.tail()}")

    async def restart(self) -> None:
        """Start the daemon again after an end of any kind."""
        await self.ended()
        await self.start()

    def tail(self, limit: int = 8000) -> str:
        return self.log.read_text(errors="replace")[-limit:] if self.log.exists() else "(no log)"

    def channel(self) -> grpc.aio.Channel:
        return channel(self.socket)

    def _running(self) -> asyncio.subprocess.Process:
        assert self.process is not None, f"{self.module} was never started"
        return self.process


def _waiting(pid: int) -> str:
    """The system call of each thread (number and arguments), and the thread's place in the kernel."""
    threads = sorted(Path(f"/proc/{pid}/task").iterdir())
    return "\n".join(
        f"{thread.name} {(thread / 'wchan').read_text()} {(thread / 'syscall').read_text().strip()}"
        for thread in threads
    )


@dataclass
class Protectd:
    """A protectd of this test alone, with clients for its services."""

    folder: Path
    settings: dict[str, object] = field(default_factory=dict)
    checkout: Path = ROOT
    """Checkout of the daemon, the agent and the launcher."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run_dir = self.folder / "run"
        self.daemon = Daemon(
            module="protect",
            config=self.folder / "protectd.toml",
            socket=self.run_dir / "protect.sock",
            log=self.folder / "protectd.log",
            checkout=self.checkout,
        )
        self.configure()

    def configure(self, **changes: object) -> None:
        """Write the configuration; the next start reads the file."""
        self.settings.update(changes)
        base: dict[str, object] = {
            "toolstack": "fake",
            "run_dir": str(self.run_dir),
            "state_dir": str(self.folder / "state"),
            "guest_dir": str(self.checkout / "zone" / "build"),
            "log_level": "debug",
            "fake": {"memory": "64GiB"},
        }
        self.daemon.config.write_text(toml(base | self.settings))

    @contextlib.asynccontextmanager
    async def clients(self) -> AsyncIterator[Clients]:
        async with self.daemon.channel() as link:
            yield Clients(
                zones=protect_pb2_grpc.ZonesStub(link),
                workloads=protect_pb2_grpc.WorkloadsStub(link),
                host=protect_pb2_grpc.HostStub(link),
                devices=protect_pb2_grpc.DevicesStub(link),
                reservations=reservations_pb2_grpc.ReservationsStub(link),
            )


@dataclass(frozen=True)
class Clients:
    """Stubs of protect.v1."""

    zones: protect_pb2_grpc.ZonesAsyncStub
    workloads: protect_pb2_grpc.WorkloadsAsyncStub
    host: protect_pb2_grpc.HostAsyncStub
    devices: protect_pb2_grpc.DevicesAsyncStub
    reservations: reservations_pb2_grpc.ReservationsAsyncStub


def _code(checkout: Path) -> dict[str, str]:
    """Python finds our code as installed; another checkout's code only before the installed code."""
    return {} if checkout == ROOT else {"PYTHONPATH": f"{checkout}:{checkout / 'proto'}"}


def toml(table: Table, at: str = "") -> str:
    """A table as TOML (strings, numbers, booleans, lists of them, tables, lists of tables)."""
    plain = [f"{key} = {json.dumps(value)}\n" for key, value in table.items() if not _is_table(value)]
    text = "".join(plain)
    for key, value in table.items():
        name = f"{at}.{key}" if at else key
        if isinstance(value, Mapping):
            text += f"[{name}]\n{toml(value, name)}"
        elif _is_table(value):
            assert isinstance(value, list)
            text += "".join(f"[[{name}]]\n{toml(row, name)}" for row in value)
    return text


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
    )
