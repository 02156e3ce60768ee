"""Calls of an honest tenant to xenpod-cri, each with a deadline: every benchmark ends."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import grpc.aio

from tests.bench.attacks.stream_clients import base_of
from tests.support.cri.stream_client import spdy
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

T = TypeVar("T")
VERSION, LIST, RUN, EXEC, PULL, STREAM = (
    "Version",
    "ListPodSandbox",
    "RunPodSandbox",
    "ExecSync",
    "pull",
    "exec stream",
)
STEPS = (VERSION, LIST, RUN, EXEC, PULL, STREAM)
_SHARES = 102
"""A request of 100m."""
_CLEANING = 30.0
_QUIET = ("sleep", "36000")
_LATE = (TimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(slots=True)
class Answers:
    """Seconds of each call that was answered, by step; how many were not, in time; and the errors."""

    patience: float
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    late: Counter[str] = field(default_factory=Counter)
    errors: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    async def time(self, step: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """None: no answer, or an error."""
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(self.patience):
                result = await work()
        except TimeoutError:
            self.late[step] += 1
        except grpc.aio.AioRpcError as error:
            self.errors[step][error.code().name] += 1
        except (OSError, EOFError, AssertionError) as error:  # of a stream
            self.errors[step][type(error).__name__] += 1
        else:
            self.seconds[step].append(time.perf_counter() - begun)
            return result
        return None

    def percentile(self, step: str, percent: int) -> float | None:
        """Nearest rank, in seconds.  None: the rank's call had no answer in time, or no call was made."""
        answered, late = sorted(self.seconds[step]), self.late[step]
        rank = -(-(len(answered) + late) * percent // 100)
        return answered[rank - 1] if 0 < rank <= len(answered) else None


class HonestTenant:
    """A pod with a running container, and its calls."""

    def __init__(self, client: Client, image: str, pulls: Sequence[str], pod: str, container: str) -> None:
        """Use ``honest_tenant``; ``pulls``: names of missing images."""
        self._client, self._image = client, image
        self._pulls = itertools.cycle(pulls)
        self._numbers = itertools.count()
        self._pod, self._container = pod, container

    async def ask(self, seconds: float, answers: Answers) -> None:
        """Make calls of each step in sequence for ``seconds``; each call may take its patience more."""
        until = time.monotonic() + seconds
        work: dict[str, tuple[Callable[[], Awaitable[object]], float]] = {
            VERSION: (self._version, 0.02),
            LIST: (self._client.pods, 0.2),
            RUN: (self._run, 0.2),
            EXEC: (self._exec, 0.1),
            # A tenant that pulls without pause uses more than its share of CPU time (ADR 36).
            PULL: (self._pull, 3.0),
            STREAM: (self._stream, 0.2),
        }

        async def again(step: str) -> None:
            call, pause = work[step]
            while time.monotonic() < until:
                result = await answers.time(step, call)
                await self._undo(step, result)
                await asyncio.sleep(pause)

        await asyncio.gather(*map(again, STEPS))

    async def _undo(self, step: str, result: object) -> None:
        """Remove the result of a call, untimed."""
        with suppress(grpc.aio.AioRpcError, TimeoutError):
            async with asyncio.timeout(_CLEANING):
                if step == RUN and isinstance(result, str):
                    await self._client.remove_pod(result)
                elif step == PULL and isinstance(result, str):
                    await self._client.remove_image(result)

    async def _version(self) -> None:
        await self._client.runtime.Version(cri.VersionRequest())

    async def _run(self) -> str:
        return (await self._client.run_pod(f"honest-{next(self._numbers)}", cpu_shares=_SHARES)).id

    async def _exec(self) -> None:
        output = await self._client.exec(self._container, "true")
        if output.exit_code:
            raise RuntimeError(f"an exec ended with {output.exit_code}: {output.stderr!r}")

    async def _pull(self) -> str:
        name = next(self._pulls)
        await self._client.pull(name)
        return name

    async def _stream(self) -> None:
        """Until the stream is open."""
        asked = cri.ExecRequest(container_id=self._container, cmd=["true"], stdout=True)
        url = (await self._client.runtime.Exec(asked)).url
        opened = await spdy(base_of(url), url)
        opened.line.close()


@asynccontextmanager
async def honest_tenant(client: Client, image: str, pulls: Sequence[str]) -> AsyncIterator[HonestTenant]:
    """The tenant's pod, while the block runs."""
    pod = await client.run_pod("honest", cpu_shares=_SHARES)
    try:
        container = await client.create(pod, image, _QUIET)
        await client.start(container)
        yield HonestTenant(client, image, pulls, pod.id, container)
    finally:
        with suppress(grpc.aio.AioRpcError, TimeoutError):
            async with asyncio.timeout(_CLEANING):
                await client.remove_pod(pod.id)
