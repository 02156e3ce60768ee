"""``make run`` for tests: the daemons while a block runs, and their remains."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import until
from tools.localnode import network
from tools.localnode.cri_client import Client, connect_client
from tools.localnode.processes import Output, background

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, "-m", "tools.localnode.run")
READY = 120.0


@dataclass(frozen=True)
class Run:
    """A serving ``make run``."""

    process: asyncio.subprocess.Process
    client: Client
    log: Path

    async def interrupt(self) -> str:
        """Ctrl-C; the whole output."""
        self.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            assert await self.process.wait() == 0
        return self.log.read_text()


@contextlib.asynccontextmanager
async def running(folder: Path, name: str, *command: str) -> AsyncIterator[Run]:
    """The daemons of a folder, by ``command`` or ``tools.localnode.run`` itself."""
    output = Output(folder.parent / f"{name}.log")
    async with background(*(command or (*PROGRAM, str(folder))), output=output, folder=ROOT) as process:
        await output.line_with("CRI endpoint: unix://", READY)
        line = next(line for line in output.path.read_text().splitlines() if "CRI endpoint" in line)
        socket = Path(line.partition("unix://")[2])
        assert socket.is_relative_to(folder)
        async with connect_client(socket, folder / "log" / "pods") as client:
            yield Run(process, client, output.path)


def processes_of(folder: Path) -> dict[int, str]:
    """Command lines that name the folder, by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, NotADirectoryError):
            if entry.name.isdigit():
                line = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
                if f"{folder}/" in line or line.strip().endswith(str(folder)):
                    found[int(entry.name)] = line
    return found


def leftovers(folder: Path) -> list[str]:
    """Processes, mounts, and the bridge of a node in ``folder``."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    bridge = Path("/sys/class/net", network.bridge_for(str(folder)).name)
    links = [str(bridge)] if bridge.exists() else []
    return [*processes_of(folder).values(), *(line for line in mounts if str(folder) in line), *links]


async def nothing_left(folder: Path) -> None:
    """Wait until nothing is left; the kernel takes its time."""
    with contextlib.suppress(TimeoutError):
        await until(lambda: not leftovers(folder))
    assert leftovers(folder) == []


async def remove_pods(folder: Path) -> str:
    """Commands in the hint of an interrupted run."""
    command = (*PROGRAM, "--remove-pods", str(folder))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0
    return out.decode()
