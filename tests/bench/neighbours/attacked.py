"""Calls of an honest tenant to xenpod-cri, alone and then beside attackers of each kind and of all kinds.

Each row has new daemons: an attack can delay daemons long after its end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc.aio

from tests.bench import memory, sides
from tests.bench.attacks.attackers import push_honest, tenants
from tests.bench.attacks.ground import AttackGround
from tests.bench.attacks.kinds import KINDS
from tests.bench.neighbours import hostile
from tests.bench.neighbours.honest import Answers, honest_tenant
from tests.support.session import leaving
from tools.localnode import images, registry
from tools.localnode.processes import ProgramFailed

HOST = "registry.bench"
ALL = "all kinds at once"
_IMAGE = f"{HOST}/busybox:1"
SECONDS, PATIENCE, RECOVERY = 30.0, 10.0, 30.0
_WARM = 2.0
_SAMPLE = 1.0
_SETUP = 240.0


@dataclass(frozen=True, slots=True)
class AttackPlan:
    """Seconds alone, and again beside attackers; to wait for an answer; after the attack."""

    seconds: float = SECONDS
    patience: float = PATIENCE
    recovery: float = RECOVERY


@dataclass(slots=True)
class DaemonMemory:
    """Resident bytes of both daemons together: before, at most, some time after; of workers at most."""

    idle: int = 0
    peak: int = 0
    after: int = 0
    workers: int = 0


@dataclass(slots=True)
class Attacked:
    """One row; ``cpus``: busy with attackers and daemons; ``failed``: reason for missing figures."""

    name: str
    alone: Answers
    beside: Answers
    memory: DaemonMemory = field(default_factory=DaemonMemory)
    cpus: Mapping[str, float] = field(default_factory=dict)
    outcomes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    failed: str = ""


def rows(only: str) -> dict[str, Sequence[str]]:
    """Kinds of attackers by the name of their row, filtered by ``only`` as a part of the name."""
    every: dict[str, Sequence[str]] = {kind: [kind] for kind in KINDS}
    return {name: kinds for name, kinds in (every | {ALL: list(KINDS)}).items() if only in name}


async def measure(folder: Path, plan: AttackPlan, chosen: Mapping[str, Sequence[str]]) -> list[Attacked]:
    """Rows in sequence; a failed row has its reason."""
    folder.mkdir(parents=True)
    async with registry.serve_registry(folder / "registry") as address:
        honest = await asyncio.to_thread(_push, address)
        found = []
        for number, (name, kinds) in enumerate(chosen.items()):
            row = Attacked(name, Answers(plan.patience), Answers(plan.patience))
            try:
                own = replace(plan, seconds=plan.seconds * max(KINDS[kind].times for kind in kinds))
                async with asyncio.timeout(2 * (own.seconds + own.patience) + own.recovery + _SETUP):
                    await _row(folder / f"{number}", AttackGround("", "", address, honest), own, kinds, row)
            except (OSError, RuntimeError, ProgramFailed, grpc.aio.AioRpcError) as error:
                row.failed = f"{type(error).__name__}: {error}".partition("\n")[0]
            # A delayed daemon did not end in order.
            await asyncio.to_thread(leaving.clear, (folder / f"{number}").resolve())
            found.append(row)
        return found


def _push(address: str) -> Sequence[str]:
    """Images for the honest tenant's pods, and names of images for its pulls."""
    images.push(address, _IMAGE.partition("/")[2], images.busybox())
    return push_honest(address)


async def _row(
    folder: Path, base: AttackGround, plan: AttackPlan, kinds: Sequence[str], row: Attacked
) -> None:
    """A TimeoutError here is the row's: each call of the honest tenant has its own."""
    settings = 'log_level = "info"\n'
    async with sides.ours(folder, base.registry, HOST, settings) as side:
        place = folder.resolve()
        ground = AttackGround(str(side.socket), str(place / "pods"), base.registry, base.honest)
        image = await side.client.pull(_IMAGE)
        pulls = [f"{HOST}/{name}" for name in base.honest]
        async with (
            tenants(ground, side.client, image, kinds) as (attackers, grounds),
            honest_tenant(side.client, image, pulls) as tenant,
        ):
            _yield_to_daemons(place)
            await tenant.ask(_WARM, Answers(plan.patience))
            await tenant.ask(plan.seconds, row.alone)
            async with _watched(side.daemons, row.memory):
                await asyncio.gather(*(attackers.begin(kind, told) for kind, told in grounds.items()))
                begun = asyncio.get_running_loop().time()
                cpu = (attackers.cpu_seconds(), memory.cpu_seconds(side.daemons))
                await tenant.ask(plan.seconds, row.beside)
                took = asyncio.get_running_loop().time() - begun
                ends = (attackers.cpu_seconds(), memory.cpu_seconds(side.daemons))
                row.cpus = {
                    name: (end - start) / took
                    for name, start, end in zip(("attackers", "daemons"), cpu, ends, strict=True)
                }
                await attackers.end()
            row.outcomes = attackers.outcomes
            recovered = asyncio.get_running_loop().time() + plan.recovery
            await attackers.remove_pods()
            await asyncio.sleep(max(0.0, recovered - asyncio.get_running_loop().time()))
            row.memory.after = memory.of(side.daemons).rss


def _yield_to_daemons(place: Path) -> None:
    """Zones get idle CPU time alone: on a host Xen's scheduler shares the CPUs."""
    hostile.schedule(hostile.domains_below(place / "run" / "protect"), os.SCHED_IDLE)


@asynccontextmanager
async def _watched(daemons: Collection[int], found: DaemonMemory) -> AsyncIterator[None]:
    """The most of two daemons together is at most the sum of the most of each."""
    protectd, xenpod_cri = daemons
    found.idle = memory.of(daemons).rss

    # In a thread, and by the fastest file: time of the event loop would be time of the measured calls.
    async def workers() -> None:
        while True:
            found.workers = max(found.workers, await asyncio.to_thread(_workers_bytes, xenpod_cri))
            await asyncio.sleep(_SAMPLE)

    with memory.Peak([protectd]) as one, memory.Peak([xenpod_cri]) as other:
        sampling = asyncio.create_task(workers())
        try:
            yield
        finally:
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
    found.peak = one.bytes + other.bytes


def _workers_bytes(xenpod_cri: int) -> int:
    return memory.resident(memory.descendants([xenpod_cri]))
