"""Runs programs in the background: starts them, waits for readiness, and ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

_STOP_SECONDS = 30.0


class ProgramFailed(Exception):
    """A program could not start, or ended; the text ends with its last output."""


class Output:
    """The output of a program, kept in a file, with its last lines in memory; callers can wait for lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: deque[str] = deque(maxlen=20)
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._ended = False

    def tail(self) -> str:
        return "\n".join(self._last)

    async def line_with(self, text: str, timeout: float) -> None:
        """Return once a line has ``text``; ProgramFailed: the program ended, or ``timeout`` s are over."""
        if any(text in line for line in self._last):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._ended:
            raise ProgramFailed(f"ended without saying {text!r}:\n{self.tail()}")
        self._waiting.append((text, future))
        try:
            await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise ProgramFailed(f"did not say {text!r} within {timeout:.0f} s:\n{self.tail()}") from None

    async def copy(self, reader: asyncio.StreamReader) -> None:
        """Copy until the program closes its output."""
        with self.path.open("ab", buffering=0) as file:
            while chunk := await reader.read(65536):
                file.write(chunk)
                for line in chunk.decode(errors="replace").splitlines():
                    self._take(line)
        self._ended = True
        for text, future in self._waiting:
            if not future.done():
                future.set_exception(ProgramFailed(f"ended without saying {text!r}:\n{self.tail()}"))

    def _take(self, line: str) -> None:
        self._last.append(line)
        for text, future in self._waiting:
            if text in line and not future.done():
                future.set_result(None)


@contextlib.asynccontextmanager
async def background(
    *command: str,
    output: Output,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``command`` in a session of its own while the block runs; then SIGTERM, later SIGKILL."""
    if shutil.which(command[0]) is None:
        raise ProgramFailed(f"{command[0]} is not installed: run `make setup`")
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **(environment or {})},
        cwd=folder,
        start_new_session=True,
    )
    assert process.stdout is not None
    copying = asyncio.create_task(output.copy(process.stdout))
    try:
        yield process
    finally:
        await _stop(process)
        copying.cancel()
        await asyncio.wait([copying])


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), _STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


class Readiness:
    """The service manager's side of sd_notify(3): waits until a daemon says READY=1."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    @property
    def environment(self) -> dict[str, str]:
        return {"NOTIFY_SOCKET": str(self._path)}

    def __enter__(self) -> Readiness:
        self._path.unlink(missing_ok=True)
        self._socket.bind(str(self._path))
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)

    async def wait(self, process: asyncio.subprocess.Process, output: Output, timeout: float) -> None:
        """Wait for readiness.  ProgramFailed: the process ends, or ``timeout`` seconds pass, before."""
        ready = asyncio.create_task(self._ready())
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({ready, ended}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                return
            how = f"ended with status {process.returncode}" if ended.done() else "is not ready in time"
            raise ProgramFailed(f"{output.path.stem} {how}; its log, {output.path}, ends:\n{output.tail()}")
        finally:
            ready.cancel()
            ended.cancel()

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        while b"READY=1" not in (await loop.sock_recv(self._socket, 4096)).split(b"\n"):
            pass
