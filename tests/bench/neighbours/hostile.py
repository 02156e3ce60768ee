"""Hostile neighbours of a benchmark: pods, and processes that play their agents and their clients.

All neighbours are idle, or hostile, at once.  On a real host the hypervisor shares the CPUs among zones; here
all hostile processes run under SCHED_IDLE, on unwanted CPU time.  The measurement then has only the daemons'
work for them, at the daemons' own priority.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from daemonkit.rpc.channels import channel
from tests.bench import memory
from tests.bench.sides import Side
from tests.support.agent.hostile_zone import FLOODS, LEGAL, directory_of
from tests.support.cri.hostile_caller import KINDS, words
from tests.support.protect.silent_server import SilentServer
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2, protect_pb2_grpc

ROOT = Path(__file__).parents[3]
FEW = 5
_TIMEOUT = 120.0
_SETTLED = 0.3
_QUIET = ("sleep", "36000")
_ONCE_TOLD = "trap 'exec sh -c \"$1\"' USR1; while :; do sleep 0.2; done"
"""A shell's script; the argument is the work after SIGUSR1."""
WRITERS = {
    "CPU": "while :; do :; done",
    "output": 'exec yes ""',
    "disks": (
        "file=/v/$(cat /proc/sys/kernel/random/uuid);"
        "while dd if=/dev/zero of=$file bs=65536 count=1024 conv=fsync; do :; done 2>/dev/null"
    ),
}


@dataclass(frozen=True, slots=True)
class Mix:
    """Kinds of hostile neighbours: attacks of agents, commands of pods, requests."""

    name: str
    agents: Sequence[str] = ()
    writers: Sequence[str] = ()
    callers: Sequence[str] = ()


def mixes(most: int) -> list[Mix]:
    """Each kind alone, then ``most`` zones of all kinds, first without and then with hostile requests."""
    frames = [kind for kind in LEGAL if kind not in ("rows", "hang-up")]
    alone = [
        Mix("frames, cut off", agents=["data"] * FEW),
        Mix("frames, within the rules", agents=_of(frames, FEW)),
        Mix("newlines, frame by frame", agents=["crumbs"] * FEW),
        Mix("statistics", agents=["rows"] * FEW),
        Mix("reconnects", agents=["hang-up"] * FEW),
        *(Mix(kind, writers=[kind] * FEW) for kind in WRITERS),
        *(Mix(kind, callers=[kind]) for kind in KINDS),
    ]
    kinds = [*FLOODS, *WRITERS]
    every = _of(kinds, max(most, len(kinds)))
    agents, writers = ([one for one in every if (one in WRITERS) is wanted] for wanted in (False, True))
    zones = f"{len(every)} zones of every kind"
    return [*alone, Mix(zones, agents, writers), Mix(f"{zones}, all requests", agents, writers, list(KINDS))]


def _of(kinds: Sequence[str], count: int) -> list[str]:
    return [kinds[number % len(kinds)] for number in range(count)]


@dataclass(frozen=True, slots=True)
class Requests:
    """``cpu_shares`` of pods, as a kubelet gives them; 0: no shares, which count as a CPU."""

    honest: int = 102
    """A request of 100m."""
    hostile: int = 2
    """None: BestEffort."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Parts for neighbours."""

    side: Side
    folder: Path
    """Where the node's files are."""
    image: str
    """The reference of an image with a shell."""
    pulls: Sequence[str]
    """Names of images with slow pulls."""
    requests: Requests

    @property
    def run_dir(self) -> Path:
        return self.folder / "run" / "protect"


class Neighbourhood:
    """The neighbours of one mix."""

    def __init__(self, ground: Ground, link: grpc.aio.Channel, stack: AsyncExitStack) -> None:
        """Use ``hostile``."""
        self._ground = ground
        self._zones = protect_pb2_grpc.ZonesStub(link)
        self._workloads = protect_pb2_grpc.WorkloadsStub(link)
        self._stack = stack
        self._processes: list[asyncio.subprocess.Process] = []
        self._writers: list[str] = []
        self._pods: list[str] = []

    async def stand_still(self) -> None:
        await self._signal(signal.SIGSTOP)
        await asyncio.sleep(_SETTLED)  # the daemons finish the work for earlier requests

    async def go_on(self) -> None:
        await self._signal(signal.SIGCONT)
        await asyncio.sleep(_SETTLED)

    async def begin(self, mix: Mix) -> None:
        """Make the neighbours' pods, then turn all of them hostile."""
        for folder in ("shared", "silent"):
            (self._ground.folder / folder).mkdir(exist_ok=True)
        before = domains_below(self._ground.run_dir)
        players = [await self._agent(number, attack) for number, attack in enumerate(mix.agents)]
        for number, kind in enumerate(mix.writers):
            await self._writer(number, kind)
        callers = [await self._caller(kind) for kind in mix.callers]
        schedule(domains_below(self._ground.run_dir) - before, os.SCHED_IDLE)
        if players:
            await self._start("tests.support.agent.hostile_zone", *players)
        for arguments in callers:
            await self._start("tests.support.cri.hostile_caller", *arguments)
        await self._signal(signal.SIGUSR1, others=False)
        await asyncio.sleep(_SETTLED)

    async def end(self) -> None:
        """Remove the pods, with normal priority again."""
        schedule(domains_below(self._ground.run_dir), os.SCHED_OTHER)
        await asyncio.gather(*map(self._ground.side.client.remove_pod, self._pods))

    async def _agent(self, number: int, attack: str) -> str:
        """A pod, the socket of its agent's channel, and the attack."""
        pod, _ = await self._pod(f"agent-{number}", _QUIET)
        request = protect_pb2.GetZoneRequest(id=pod.id)
        zone = await self._zones.GetZone(request, timeout=_TIMEOUT)
        return f"{directory_of(self._ground.run_dir, zone.domain_id)}:{attack}"

    async def _writer(self, number: int, kind: str) -> None:
        mounts = [cri.Mount(host_path=str(self._ground.folder / "shared"), container_path="/v")]
        command = ("sh", "-c", _ONCE_TOLD, kind, WRITERS[kind])
        _, container = await self._pod(f"writer-{number}", command, mounts)
        self._writers.append(container)

    async def _caller(self, kind: str) -> Sequence[str]:
        """Arguments of the process with its requests."""
        socket, logs = str(self._ground.side.socket), str(self._ground.folder / "pods")
        if kind == "hostile pull":
            return socket, logs, kind, ",".join(self._ground.pulls)
        place = self._ground.image
        if kind == "silent file server":
            server = SilentServer(self._ground.folder / "silent" / os.urandom(4).hex())
            self._stack.enter_context(server)
            place = f"{place},{server.path}"
        pods = [await self._pod(f"{kind.partition(' ')[0].lower()}-{n}", _QUIET) for n in range(FEW)]
        return socket, logs, kind, place, *(words(pod) for pod, _ in pods)

    async def _pod(
        self, name: str, command: Sequence[str], mounts: Sequence[cri.Mount] = ()
    ) -> tuple[Pod, str]:
        client = self._ground.side.client
        pod = await client.run_pod(name, cpu_shares=self._ground.requests.hostile)
        self._pods.append(pod.id)
        container = await client.create(pod, self._ground.image, command, mounts=mounts)
        await client.start(container)
        return pod, container

    async def _start(self, module: str, *arguments: str) -> None:
        """Returns at the process's message that the attack runs."""
        command = ("chrt", "--idle", "0", sys.executable, "-m", module, *arguments)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT)
        self._stack.push_async_callback(_ended, process)
        assert process.stdout is not None
        async with asyncio.timeout(_TIMEOUT):
            if not await process.stdout.readline():
                raise RuntimeError(f"{module} ended before it was hostile")
        self._processes.append(process)

    async def _signal(self, number: int, *, others: bool = True) -> None:
        for process in self._processes if others else ():
            process.send_signal(number)
        for writer in self._writers:
            request = protect_pb2.SignalWorkloadRequest(id=writer, signal=number)
            await self._workloads.SignalWorkload(request, timeout=_TIMEOUT)


@asynccontextmanager
async def hostile(ground: Ground, mix: Mix) -> AsyncIterator[Neighbourhood]:
    """The neighbours, hostile during the block; removed at its end."""
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(channel(ground.run_dir / "protect.sock"))
        made = Neighbourhood(ground, link, stack)
        stack.push_async_callback(made.end)
        await made.begin(mix)
        yield made


async def _ended(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def domains_below(run_dir: Path) -> set[int]:
    """All processes of the zones of one protectd."""
    monitors = memory.with_argument(str(run_dir), "fakedom")
    return monitors | memory.descendants(monitors)


def schedule(pids: set[int], policy: int) -> None:
    """For these processes, and their future children."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.sched_setscheduler(pid, policy, os.sched_param(0))
