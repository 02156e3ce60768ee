"""Starts ``fakedom``, the launcher and monitor of a zone.  The fake toolstack runs no other program."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from daemonkit.host.children import settle
from protect.model.errors import ToolstackError
from protect.toolstack.pidfd_process import PidfdProcess

_STDERR_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Launch:
    """Start parameters of a zone: memory in bytes, environment of the agent."""

    fakedom: Path
    root: Path
    directory: Path
    memory: int
    cgroups: tuple[Path, ...]
    environment: Mapping[str, str]
    shared: Path | None
    lock: int
    """A descriptor that fakedom's foreground process inherits, together with its file lock."""

    def command(self) -> list[str]:
        """fakedom's command line."""
        line = [str(self.fakedom), "--root", str(self.root), "--dir", str(self.directory)]
        line += ["--memory", str(self.memory)]
        for group in self.cgroups:
            line += ["--cgroup", str(group)]
        # fakedom passes the agent its listening socket as descriptor 3, the shared directory as 4
        environment = {**self.environment, "XENPOD_CHANNEL": "fd:3"}
        if self.shared:
            line += ["--shared", str(self.shared)]
            environment["XENPOD_SHARED"] = "fd:4"
        for name, value in sorted(environment.items()):
            line += ["--env", f"{name}={value}"]
        return line


async def launch(request: Launch, timeout: float) -> None:
    """Run fakedom until its foreground process has ended.  ToolstackError with its stderr."""
    name = request.directory.name
    # stderr is a file, not a pipe: a file needs no reader
    stderr = os.memfd_create("fakedom-stderr", os.MFD_CLOEXEC)
    try:
        try:
            child = await asyncio.to_thread(_spawn, request, stderr)
        except OSError as error:
            hint = "build the guest parts: make zone" if isinstance(error, FileNotFoundError) else ""
            raise ToolstackError("start zone", name, f"{request.fakedom}: {error.strerror}", hint) from error
        code = await _wait(child, timeout)
        complaint = os.pread(stderr, _STDERR_BYTES, 0).decode(errors="replace").strip()
    finally:
        os.close(stderr)
    if code is None:
        raise ToolstackError("start zone", name, f"fakedom did not finish within {timeout} s", complaint)
    if code != 0:
        raise ToolstackError("start zone", name, complaint or f"fakedom ended with {code}")


def _spawn(request: Launch, stderr: int) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        request.command(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=(request.lock,),
        cwd="/",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    settle(child.pid)
    return child


async def _wait(child: subprocess.Popen[bytes], timeout: float) -> int | None:
    """Wait for the process: its exit status, or None after a kill at the timeout."""
    process = PidfdProcess.open(child.pid)
    if process is None:  # the process has ended and is our zombie
        return child.wait()
    try:
        async with asyncio.timeout(timeout):
            await process.wait()
        return child.wait()
    except TimeoutError:
        return None
    finally:
        process.close()
        if child.returncode is None:
            child.kill()
            child.wait()
