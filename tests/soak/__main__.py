"""Soak test: ``python -m tests.soak --pods 500``, or ``--pods 30 --nested`` for Xen in QEMU; ``--minutes 60``
ends each half after half of the time, or after half of the pods.

Pods come and go, several at once, during random faults: the toolstack fails (fake), zones die, daemons are
killed.  At the end no pod may leave anything.  In the second half no daemon is killed, and memory,
descriptors and threads of the daemons may not grow.  An equal seed draws equal faults, at other moments.

With ``--attackers`` kinds of tests/bench/attacks run beside the pods (fake only).  The comparison is then
half a minute after the end of the attackers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import grpc.aio

from tests.bench.attacks.attackers import push_honest, tenants
from tests.bench.attacks.ground import AttackGround
from tests.bench.attacks.kinds import KINDS
from tests.soak import census
from tests.soak.chaos import Chaos
from tests.support.cri.cri_daemons import CriNode, in_step, pulled
from tests.support.waiting import until
from tests.xen import nested
from tests.xen.qemu import Size
from tools.localnode import registry
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_SCRIPTS = (
    "exit 0",
    "echo out; exit 3",
    "exec sleep 1000",
    "head -c 200000 /dev/zero | tr '\\\\0' x; exit 0",
)
_CLEAN = 300.0
_SETTLED = 30.0


@dataclass
class Soak:
    """One node, its image, and the results of its pods."""

    node: CriNode
    client: Client
    image: str
    random: Random
    chaos: Chaos
    attack: AttackGround | None = None
    """None: no attackers."""
    kinds: Sequence[str] = ()
    outcomes: Counter[str] = field(default_factory=Counter)
    attacks: Counter[str] = field(default_factory=Counter)
    """Results of the attackers' calls."""

    async def half(self, numbers: Iterator[int], at_once: int) -> None:
        """Run the pods to their ends with faults; then remove everything without faults."""
        async with self._attacked():
            mischief = asyncio.create_task(self.chaos.run())
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(at_once):
                        group.create_task(self._one_after_another(numbers, mischief))
            finally:
                async with self.chaos.quiet:
                    mischief.cancel()
                self.chaos.calm()
        await self._clean()
        if self.attack is not None:
            await asyncio.sleep(_SETTLED)

    @contextlib.asynccontextmanager
    async def _attacked(self) -> AsyncIterator[None]:
        """During the block attackers of every kind run, if any."""
        if self.attack is None:
            yield
            return
        async with tenants(self.attack, self.client, self.image, self.kinds) as (attackers, grounds):
            for kind, ground in grounds.items():
                await attackers.begin(kind, ground)
            yield
            await attackers.end()
        for outcomes in attackers.outcomes.values():
            self.attacks.update(outcomes)

    async def _one_after_another(self, numbers: Iterator[int], mischief: asyncio.Task[None]) -> None:
        for number in numbers:
            if mischief.done():
                mischief.result()
            await self._pod(number)

    async def _pod(self, number: int) -> None:
        """A pod's life; a fault may end the life at any step."""
        step = "run"
        try:
            pod = await self.client.run_pod(f"soak-{number}")
            step = "create"
            container = await self.client.create(pod, self.image, ["sh", "-c", self.random.choice(_SCRIPTS)])
            step = "start"
            await self.client.start(container)
            step = "exec"
            if self.random.random() < 0.5:
                await self.client.exec(container, "true")
            step = "remove"
            await self.client.remove_container(container)
            await self.client.remove_pod(pod.id)
            self.outcomes["whole life"] += 1
        except grpc.aio.AioRpcError as error:
            self.outcomes[f"ended at {step}: {error.code().name}"] += 1
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await self._served_again()
            # Else the addresses of the node would be used up; what is left all the same goes in the end.
            with suppress(grpc.aio.AioRpcError):
                await self._remove(f"soak-{number}")

    async def _remove(self, name: str) -> None:
        """A failed call may still have made the pod."""
        for pod in (await self.client.runtime.ListPodSandbox(cri.ListPodSandboxRequest())).items:
            if pod.metadata.name == name:
                await self.client.remove_pod(pod.id)

    async def _served_again(self) -> None:
        """Wait until both daemons answer; a daemon may be killed again during the wait."""
        async with asyncio.timeout(_CLEAN):
            while True:
                with suppress(grpc.aio.AioRpcError):
                    return await in_step(self.client)

    async def _clean(self) -> None:
        """Remove every pod, as the kubelet would, again and again; no leftovers are allowed."""
        async with asyncio.timeout(_CLEAN) as patience:
            try:
                await self._served_again()
                while pods := await self.client.pods():
                    for pod in pods:
                        with suppress(grpc.aio.AioRpcError):
                            await self.client.remove_pod(pod)
                await until(self._empty, _CLEAN)
            except asyncio.CancelledError:
                assert not patience.expired(), f"left: {census.left(self.node)}"
                raise

    async def _empty(self) -> bool:
        return not await asyncio.to_thread(census.left, self.node)


@dataclass(frozen=True, slots=True)
class Length:
    """Length of a soak: the pods, and the time if they take longer."""

    pods: int
    seconds: float = math.inf

    def half(self, numbers: Iterator[int], pods: int) -> Iterator[int]:
        """At most ``pods`` numbers, during half of the time."""
        end = time.monotonic() + self.seconds / 2
        for number in itertools.islice(numbers, pods):
            if time.monotonic() > end:
                return
            yield number


async def soak(
    folder: Path, length: Length, at_once: int, seed: int, attackers: str | None = None
) -> list[str]:
    """Leaked objects."""
    xen = os.path.exists("/proc/xen/privcmd")
    node = CriNode(folder)
    if xen:
        profiles = {"default": {"memory": "120MiB", "mode": "pv"}}
        node.protectd.configure(
            toolstack="libxl", profiles=profiles, timeouts={"boot": "600s", "call": "300s"}
        )
    await node.start()
    try:
        async with pulled(node, folder / "registry") as image, node.daemon.channel() as link:
            random = Random(seed)
            chaos = Chaos(node, random, xen, pause=30.0 if xen else 1.0)
            run = Soak(node, Client(link, node.logs, 900.0), image, random, chaos)
            if attackers is None:
                return await _both_halves(run, length, at_once)
            async with registry.serve_registry(folder / "honest") as address:
                honest = await asyncio.to_thread(push_honest, address)
                run.kinds = [kind for kind in KINDS if attackers in kind]
                run.attack = AttackGround(str(node.daemon.socket), str(node.logs), address, honest)
                return await _both_halves(run, length, at_once)
    finally:
        await node.close()


async def _both_halves(run: Soak, length: Length, at_once: int) -> list[str]:
    numbers, pods = itertools.count(), length.pods
    begun = time.monotonic()
    await run.half(length.half(numbers, pods // 2), at_once)
    run.chaos.kills = False
    # A new daemon has not yet allocated all of its lasting memory.
    warm = min(pods // 4, 50)
    await run.half(itertools.islice(numbers, warm), at_once)
    before = census.take(run.node)
    await run.half(length.half(numbers, pods - pods // 2 - warm), at_once)
    after = census.take(run.node)
    sys.stdout.write(f"{next(numbers)} pods in {time.monotonic() - begun:.0f} s, {at_once} at once\n")
    if run.attack is not None:
        sys.stdout.write(f"  attacks: {dict(run.attacks)}\n")
    sys.stdout.write(f"  outcomes: {dict(run.outcomes)}\n  faults: {dict(run.chaos.done)}\n")
    sys.stdout.write(f"  before {before.shown()}\n  after  {after.shown()}\n")
    return after.grown(before)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end earlier than after --pods")
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nested", action="store_true", help="boot Xen in QEMU, and soak there")
    parser.add_argument(
        "--attackers", nargs="?", const="", metavar="PART", help="attackers of every kind whose name has this"
    )
    options = parser.parse_args()
    if options.nested and options.attackers is not None:
        parser.error("--attackers is for the fake toolstack")
    if options.nested:
        return _nested(options)
    with tempfile.TemporaryDirectory(prefix="xenpod-soak-", dir="/var/tmp") as folder:
        length = Length(options.pods, 60.0 * options.minutes)
        work = soak(Path(folder), length, options.at_once, options.seed, options.attackers)
        leaked = asyncio.run(work)
    for leak in leaked:
        sys.stdout.write(f"  LEAK {leak}\n")
    return 1 if leaked else 0


def _nested(options: argparse.Namespace) -> int:
    return nested.run_module(
        "tests.soak",
        *("--seed", str(options.seed), "--pods", str(options.pods), "--at-once", str(options.at_once)),
        *("--minutes", str(options.minutes)),
        deadline=600.0 + 60.0 * options.pods,
        size=Size(machine_mib=3072 + 128 * options.at_once),
    )


if __name__ == "__main__":
    sys.exit(main())
