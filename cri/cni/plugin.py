"""Calls CNI plugins (specification section 3); the only module that starts plugin processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cri.state.attachment import Json
from daemonkit.faults import Broken, Exhausted, Fault, Invalid, Refused, TooLate, Unreachable
from daemonkit.host.children import settle
from daemonkit.observe.steps import step
from daemonkit.tasks import complete, gather

_OUTPUT_BYTES = 1024 * 1024
_CALL = "call CNI plugin"
# Specification section 4, "Well-known Error Codes"; plugins' own codes begin at 100.
_KINDS: Mapping[int, type[Fault]] = {
    1: Refused,  # incompatible CNI version
    2: Refused,  # unsupported field in the network configuration
    4: Invalid,  # invalid environment
    7: Refused,  # invalid network configuration
    11: Unreachable,  # try again later
}
_NO_ADDRESSES = "no IP addresses available"  # host-local, which has no error code for this


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a plugin: its input and environment."""

    command: str
    type: str
    environment: Mapping[str, str]
    config: Json
    hold: int
    """A descriptor for the plugin and its children to inherit.  Each of these processes keeps it open."""


class Plugins:
    """The plugins in the configured directories."""

    def __init__(self, directories: tuple[Path, ...], timeout: float) -> None:
        self._directories = directories
        self._timeout = timeout

    @property
    def path(self) -> str:
        """The value of CNI_PATH."""
        return os.pathsep.join(str(directory) for directory in self._directories)

    def find(self, kind: str) -> Path:
        """The plugin's binary; Refused: no directory has it."""
        for directory in self._directories:
            if os.access(directory / kind, os.X_OK):
                return directory / kind
        raise Refused("find CNI plugin", kind, f"it is not in {self.path}", "install the CNI plugins")

    async def call(self, call: Call) -> bytes:
        """Run the plugin; returns its standard output, or raises the fault that the plugin reported.

        The plugin runs to its end or to the timeout, even if the caller is cancelled.  If host-local is
        killed between making and writing a lease's file, the file holds an address that no DEL can free.
        """
        with step(f"cni.{call.command.lower()}", plugin=call.type):
            return await complete(self._call(call))

    async def _call(self, call: Call) -> bytes:
        process = await asyncio.create_subprocess_exec(
            self.find(call.type),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**_inherited(), **call.environment, "CNI_COMMAND": call.command, "CNI_PATH": self.path},
            start_new_session=True,
            pass_fds=(call.hold,),
        )
        try:
            # Before the plugin has its input: without input the plugin does nothing.
            await asyncio.to_thread(settle, process.pid)
            async with asyncio.timeout(self._timeout):
                stdout, stderr = await _converse(process, json.dumps(call.config).encode())
        except TimeoutError:
            raise TooLate(_CALL, f"{call.type} {call.command}", f"no answer in {self._timeout:g} s") from None
        finally:
            await _reap(process)
        if process.returncode == 0:
            return stdout
        raise _fault(call, process.returncode, stdout, stderr)


async def _converse(process: asyncio.subprocess.Process, given: bytes) -> tuple[bytes, bytes]:
    assert process.stdin and process.stdout and process.stderr  # all three were requested
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a plugin need not read its input
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()
    stdout, stderr = await gather(_read_output(process.stdout), _read_output(process.stderr))
    await process.wait()
    return stdout, stderr


async def _read_output(stream: asyncio.StreamReader) -> bytes:
    """Read to the end, but keep no more than the limit."""
    kept = bytearray()
    while chunk := await stream.read(65_536):
        if len(kept) <= _OUTPUT_BYTES:
            kept += chunk
    return bytes(kept)


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Kill a running plugin with its children: the plugin leads its own process group."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _fault(call: Call, status: int | None, stdout: bytes, stderr: bytes) -> Fault:
    subject = f"{call.type} {call.command}"
    try:
        error = json.loads(stdout[:_OUTPUT_BYTES])
        code, message = int(error["code"]), str(error["msg"])
        details = str(error.get("details") or "")
    except (ValueError, TypeError, KeyError, RecursionError):
        said = (stderr or stdout).decode(errors="replace").strip()[-500:]
        return Broken(_CALL, subject, f"exit status {status}: {said or 'no output'}")
    cause = f"{message[:1000]}{': ' + details[:500] if details else ''} (code {code})"
    kind = Exhausted if _NO_ADDRESSES in message else _KINDS.get(code, Broken)
    return kind(_CALL, subject, cause)


def _inherited() -> dict[str, str]:
    """The environment variables that a plugin needs to find iptables and similar programs."""
    return {"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")}
