"""A fake zone for tests, with access to its launcher and its processes."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.agent.zone_client import DEADLINE, Client
from tests.support.agent.zone_specs import creation
from tests.support.waiting import block_until

__all__ = ["BUILD", "ZONE", "Zone", "attached", "creation", "writable_loop"]

ZONE = Path(__file__).parents[3] / "zone"
BUILD = ZONE / "build"
SYS_PIDFD_GETFD = 438


@contextmanager
def attached(image: Path) -> Iterator[Path]:
    """An image file as a read-only block device."""
    command = ["losetup", "--find", "--show", "--read-only", str(image)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    device = Path(done.stdout.strip())
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", str(device)], check=True)


@contextmanager
def writable_loop(path: Path, size: int) -> Iterator[Path]:
    """A sparse file as a block device."""
    with path.open("wb") as file:
        file.truncate(size)
    command = ["losetup", "--find", "--show", str(path)]
    device = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield Path(device)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


class Zone:
    """A zone on the fake: launcher, pid, channel."""

    def __init__(
        self,
        directory: Path,
        root: Path,
        cgroups: list[Path],
        shared: Path | None = None,
        through: Sequence[str] = (),
        **environment: str,
    ) -> None:
        self.directory = directory
        self.channel = directory / "channel.sock"
        command = [*through, str(BUILD / "fakedom"), "--root", str(root), "--dir", str(directory)]
        if shared:
            command += ["--shared", str(shared)]
        for cgroup in cgroups:
            command += ["--cgroup", str(cgroup)]
        command += ["--env", "XENPOD_ZONE=test", "--env", "XENPOD_CHANNEL=fd:3"]
        for name, value in environment.items():
            command += ["--env", f"{name}={value}"]
        command += ["--env", "ASAN_OPTIONS=detect_leaks=1:abort_on_error=1", "--env", "PATH=/usr/bin"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        self.pid = int((directory / "pid").read_text().split()[0])
        self.pidfd = os.pidfd_open(self.pid)

    def unpause(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def connect(self, **options: object) -> Client:
        return Client(self.channel, **options)  # type: ignore[arg-type]

    def attach(self, name: str, device: Path) -> None:
        """Make a block device of the host appear in the zone."""
        number = device.stat().st_rdev
        os.mknod(f"/proc/{self.pid}/root/dev/{name}", 0o600 | 0o060000, number)

    def children(self) -> list[str]:
        """Command lines of the processes that the agent has to reap; "" is a zombie."""
        found = []
        for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):  # the agent has just reaped the process
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip())
        return found

    def sockets(self) -> Iterator[socket.socket]:
        """The agent's sockets, each until the next request."""
        libc = ctypes.CDLL(None, use_errno=True)
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            if os.readlink(f"/proc/{self.pid}/fd/{name}").startswith("socket:"):
                number = libc.syscall(SYS_PIDFD_GETFD, self.pidfd, int(name), 0)
                assert number >= 0, os.strerror(ctypes.get_errno())
                with socket.socket(fileno=number) as copy:
                    yield copy

    def console(self) -> str:
        return (self.directory / "console.log").read_text(errors="replace")

    def destroy(self) -> None:
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.wait_status()
        os.close(self.pidfd)

    def wait_status(self) -> str:
        """Wait for the monitor to report the end of the zone: its status."""
        block_until((self.directory / "status").exists, DEADLINE, "the zone ends")
        return (self.directory / "status").read_text().strip()
