"""Requests of a large cluster's DRA drivers to its API server: writes a second, and bytes of slices.

``python -m tests.bench.alone.dra_scale`` runs the product's own keeper of slices for each of 5,000 nodes,
with pods that come and go, against a model of the API server, in virtual time: a timer ends as soon as no
other work is left, and minutes of a cluster take as long as their work.  The processes of ``--jobs`` share
the nodes, because nodes do not wait for each other.  Requests take 10 ms of virtual time.  The model counts
the keeper's requests; the API server's own work (storage, watchers), and Kubernetes' own requests for each
pod and claim, are not in the model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import selectors
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from cluster.dra.config import DraConfig, SliceMode
from cluster.dra.model import HostDevice, Promise, ZoneMemory
from cluster.dra.slices.document import (
    Document,
    NodeSlice,
    SliceVersion,
    document,
    shared_device,
    unclaimed_device,
)
from cluster.dra.slices.keeper import SliceKeeper
from daemonkit.faults import Unreachable

GIB = 1 << 30
_NODE = 256 * GIB
_POD = 512 << 20
_LIFETIME = 60.0
"""Average lifetime of a pod, in seconds."""
_PLACING = 0.2
"""Seconds from a claim's allocation to its preparation: scheduler and kubelet."""
_LATENCY = 0.01
_ATTRIBUTES: Mapping[str, str | int | bool] = {
    "toolstack": "libxl",
    "hypervisorVersion": "4.17",
    "pv": True,
    "pvh": True,
    "iommu": True,
}


class _NoFiles(selectors.SelectSelector):
    """Does not wait: a select sets the clock forward by its timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is left to happen")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only by its timers."""

    def __init__(self) -> None:
        self._clock = _NoFiles()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def virtually(main: Coroutine[Any, Any, None]) -> float:
    """Run a coroutine in virtual time; returns the virtual seconds."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main)
        return runner.get_loop().time()


@dataclass
class ModelServer:
    """The slices, and counts of their requests.

    ``shared``: claims can share a device.  ``away``: the server refuses everything.  ``told``: the watchers
    of a node's slice.
    """

    shared: bool
    slices: dict[str, Document] = field(default_factory=dict)
    told: dict[str, Callable[[Document], None]] = field(default_factory=dict)
    writes: Counter[int] = field(default_factory=Counter)
    reads: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    written_bytes: int = 0
    slice_bytes: int = 0
    away: bool = False
    _versions: int = 0

    async def node_uid(self, node: str) -> str:
        await self._asked(self.reads)
        return f"uid-of-{node}"

    async def shares_capacity(self, trial: NodeSlice) -> bool:
        await self._asked(self.reads)  # a dry run: the server stores nothing and informs no watcher
        return self.shared

    async def slice(self, name: str) -> Document | None:
        await self._asked(self.reads)
        return self.slices.get(name)

    async def create(self, wanted: NodeSlice) -> Document:
        return await self._write(wanted)

    async def replace(self, wanted: NodeSlice, there: Document) -> Document:
        return await self._write(wanted)

    async def _write(self, wanted: NodeSlice) -> Document:
        await self._asked(self.writes)
        body = document(wanted, SliceVersion.V1)
        self._versions += 1
        body["metadata"]["resourceVersion"] = str(self._versions)
        size = len(json.dumps(body, separators=(",", ":")))
        self.written_bytes += size
        self.slice_bytes = max(self.slice_bytes, size)
        self.slices[wanted.name] = body
        self.told[wanted.node](body)
        return body

    async def _asked(self, count: Counter[int]) -> None:
        second = int(asyncio.get_running_loop().time())
        await asyncio.sleep(_LATENCY)
        if self.away:
            self.refused[second] += 1
            raise Unreachable("ask", "the API server", "it is away")
        count[second] += 1


class SimulatedNode:
    """A node's keeper, its ledger, and the scheduler and kubelet with their claims."""

    def __init__(self, name: str, server: ModelServer, scenario: Scenario, seed: float) -> None:
        self.keeper = SliceKeeper(DraConfig(node=name), server, self, lambda *_: None)
        self.started = 0
        self._scenario = scenario
        self._random = random.Random(seed)
        self._held: dict[str, Promise] = {}
        self._beside = 0
        """Bytes of zones without a claim."""
        self._waiting = 0
        """Pods with unplaced claims."""
        self._numbers = 0
        self._device = ""
        """For the next claim, or all claims; "": none."""
        server.told[name] = self._seen
        self._show()

    async def live(self, pods_a_minute: float) -> None:
        """Let pods come at random times."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._random.expovariate(pods_a_minute / 60))
            if self._random.random() < self._scenario.without_claim:
                self._zone(_POD)
                loop.call_later(self._lifetime(), self._zone, -_POD)
            else:
                self._waiting += 1
                self._place()

    async def all(self) -> Sequence[Promise]:
        """The ledger's reservations."""
        return tuple(self._held.values())

    async def devices(self) -> Sequence[HostDevice]:
        """The host has none to offer."""
        return ()

    def _zone(self, size: int) -> None:
        """A zone without a claim begins, or ends."""
        self._beside += size
        self._show()

    def _seen(self, slice_: Document) -> None:
        """The scheduler sees the node's offer."""
        shared = shared_device(slice_)
        offered = shared or unclaimed_device(slice_)
        self._device = "" if offered in {one.device for one in self._held.values()} - {shared} else offered
        self._place()

    def _place(self) -> None:
        """Place the claims of waiting pods: all on a shared device, else one on the free device."""
        while self._waiting and self._device:
            self._waiting -= 1
            asyncio.get_running_loop().call_later(_PLACING, self._prepare, self._device)
            if self._scenario.mode is SliceMode.SPLIT:
                self._device = ""

    def _prepare(self, device: str) -> None:
        self._numbers += 1
        self.started += 1
        uid = str(self._numbers)
        self._held[uid] = Promise(uid, _POD, (), device)
        self.keeper.claimed(device)
        self._show()
        asyncio.get_running_loop().call_later(self._lifetime(), self._unprepare, uid)

    def _unprepare(self, uid: str) -> None:
        del self._held[uid]
        self.keeper.released()
        self._show()

    def _show(self) -> None:
        """protectd reports every change of the ledger, including changes without effect on claims."""
        self.keeper.show(ZoneMemory(_NODE, _NODE - self._beside), _ATTRIBUTES)

    def _lifetime(self) -> float:
        return self._random.expovariate(1 / _LIFETIME)


@dataclass(frozen=True)
class Scenario:
    """Activity of the cluster.

    ``without_claim``: the part of its pods without a claim.  ``away``: seconds without the API server, in the
    middle.  ``part``: the simulated part of the nodes; the figures are for all nodes, because nodes do not
    wait for each other.
    """

    name: str
    mode: SliceMode
    without_claim: float = 0.0
    away: float = 0.0
    part: float = 1.0


@dataclass(frozen=True)
class Load:
    """Counts of the model, a second unless noted."""

    first_writes: float
    first_reads: float
    """Maximum in one of the first seconds, when all drivers start at once."""
    writes: float
    most_writes: float
    reads: float
    most_requests: float
    """Including refused requests."""
    written: float
    """Bytes."""
    slice_bytes: int
    """Maximum of a node."""
    node_writes: float
    """Of a node, a minute."""
    node_claims: float
    """Prepared claims of a node, a minute."""


@dataclass(frozen=True)
class Share:
    """Nodes of a run that wait for no others: ``count`` nodes from number ``first`` on."""

    scenario: Scenario
    first: int
    count: int
    pods_a_minute: float
    seconds: float
    seed: int


@dataclass
class Counted:
    """Requests of a share's nodes by second, and counts of starts and of writes after the start."""

    writes: Counter[int] = field(default_factory=Counter)
    reads: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    started: int = 0
    written_bytes: int = 0
    slice_bytes: int = 0

    def add(self, other: Counted) -> None:
        self.writes.update(other.writes)
        self.reads.update(other.reads)
        self.refused.update(other.refused)
        self.started += other.started
        self.written_bytes += other.written_bytes
        self.slice_bytes = max(self.slice_bytes, other.slice_bytes)


_WARM = 2 * DraConfig().write_interval
_SHARE = 50
"""Nodes of a share: the maximum in the memory of a process."""


def counted(share: Share) -> Counted:
    """Run a share of the nodes."""
    scenario, seconds = share.scenario, share.seconds
    server = ModelServer(scenario.mode is SliceMode.SHARED)
    started = [0, 0]

    async def run() -> None:
        draw = random.Random(f"{share.seed}/{share.first}")
        names = [f"node-{one}" for one in range(share.first, share.first + share.count)]
        made = [SimulatedNode(name, server, scenario, draw.random()) for name in names]
        lives = [node.live(share.pods_a_minute) for node in made]
        tasks = [asyncio.create_task(one) for one in (*(node.keeper.keep() for node in made), *lives)]
        await asyncio.sleep(_WARM)
        assert len(server.slices) == share.count
        server.written_bytes, started[0] = 0, sum(node.started for node in made)
        await asyncio.sleep((seconds - scenario.away) / 2)
        server.away = scenario.away > 0
        await asyncio.sleep(scenario.away)
        server.away = False
        await asyncio.sleep((seconds - scenario.away) / 2)
        started[1] = sum(node.started for node in made)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended

    random.seed(f"{share.seed}/{share.first}")  # the keepers' jitter
    virtually(run())
    return Counted(
        server.writes,
        server.reads,
        server.refused,
        started[1] - started[0],
        server.written_bytes,
        server.slice_bytes,
    )


def simulate(
    scenario: Scenario,
    nodes: int,
    pods_a_minute: float,
    seconds: float,
    seed: int = 1,
    each: Callable[[Callable[[Share], Counted], Iterable[Share]], Iterable[Counted]] = map,
) -> Load:
    """Run the scenario: requests to the API server at the start, and after the start.

    ``each``: runs the shares of the nodes, as ``map`` does.
    """
    count = max(1, round(nodes * scenario.part))
    found = Counted()
    shares = (
        Share(scenario, first, min(_SHARE, count - first), pods_a_minute, seconds, seed)
        for first in range(0, count, _SHARE)
    )
    for one in each(counted, shares):
        found.add(one)
    return _load(found, count, nodes / count, seconds)


def _load(found: Counted, count: int, scale: float, seconds: float) -> Load:
    """``scale``: number of nodes for each simulated node."""
    measured = range(int(_WARM) + 1, int(_WARM + seconds))
    kinds = (found.writes, found.reads, found.refused)
    writes, reads, refused = ([kind[second] for second in measured] for kind in kinds)
    return Load(
        first_writes=max(found.writes[second] for second in range(int(_WARM))) * scale,
        first_reads=max(found.reads[second] for second in range(int(_WARM))) * scale,
        writes=sum(writes) / len(writes) * scale,
        most_writes=max(writes) * scale,
        reads=sum(reads) / len(reads) * scale,
        most_requests=max(map(sum, zip(writes, reads, refused, strict=True))) * scale,
        written=found.written_bytes / seconds * scale,
        slice_bytes=found.slice_bytes,
        node_writes=sum(writes) / len(writes) * 60 / count,
        node_claims=found.started / seconds * 60 / count,
    )


SCENARIOS = (
    Scenario("shared: all pods have claims", SliceMode.SHARED, part=0.02),
    Scenario("shared: a fifth of the pods have none", SliceMode.SHARED, without_claim=0.2, part=0.02),
    Scenario("shared: the same, API server away for 60 s", SliceMode.SHARED, 0.2, away=60.0, part=0.02),
    Scenario("split: all pods have claims", SliceMode.SPLIT, part=0.002),
    Scenario("split: the same, API server away for 60 s", SliceMode.SPLIT, away=60.0, part=0.002),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.alone.dra_scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=float, default=100.0, help="pods a minute on each node")
    parser.add_argument("--seconds", type=float, default=120.0, help="of virtual time")
    parser.add_argument("--all", action="store_true", help="simulate all nodes, not a part of them")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes that share the nodes"
    )
    options = parser.parse_args()
    say = Console(width=110, highlight=False).print
    say(f"{options.nodes} nodes, {options.pods:g} pods a minute on each, {options.seconds:g} s")
    scenarios = [replace(one, part=1.0) if options.all else one for one in SCENARIOS]
    with ProcessPoolExecutor(options.jobs, initializer=_quiet) as pool:
        _report(scenarios, options, pool.map, say)
    return 0


def _quiet() -> None:
    logging.disable(logging.WARNING)  # of each of the keepers


def _report(
    scenarios: Iterable[Scenario], options: argparse.Namespace, each: Any, say: Callable[[str], None]
) -> None:
    for scenario in scenarios:
        begun = time.monotonic()
        load = simulate(scenario, options.nodes, options.pods, options.seconds, each=each)
        say(f"\n{scenario.name}")
        say(
            f"  at the start of all at once: {load.first_writes:.0f} writes/s, {load.first_reads:.0f} reads/s"
        )
        say(
            f"  then {load.writes:.1f} writes/s (up to {load.most_writes:.0f}), {load.written / 1e3:.0f} kB/s"
        )
        say(f"  and {load.reads:.1f} reads/s; with those refused at most {load.most_requests:.0f} requests/s")
        say(f"  a node: {load.node_writes:.2f} writes and {load.node_claims:.1f} claims a minute")
        say(f"  the slice of a node: at most {load.slice_bytes} bytes")
        say(f"  (of {scenario.part:.1%} of the nodes, in {time.monotonic() - begun:.0f} s)")


if __name__ == "__main__":
    sys.exit(main())
