"""A compromised zone that burns all the time of its vCPUs, in no container's control group.

What it gets is judged by the kernel's own accounts of it and of its neighbour, never by the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from localnode.client import Client
from protect.toolstack.fake.cgroups import Cgroups
from protect.toolstack.fake.hierarchies import find_hierarchies
from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.protect.leftovers import instance
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]

BURNERS = 4
PERIOD = 100_000
SECOND = 10**9


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    """Zones have as many vCPUs as they burn, if nothing else bounds them."""
    made = CriNode(tmp_path)
    made.configure(handlers={"wide": {"vcpus": BURNERS}})
    await made.start()
    yield made
    await made.close()


@dataclass(frozen=True)
class Zone:
    """A pod's zone as the host's control groups show it."""

    cgroups: Cgroups
    domain: str

    @property
    def used_ns(self) -> int:
        return self.cgroups.cpu_time_ns(self.domain)

    @property
    def groups(self) -> list[Path]:
        """Of the CPU controllers."""
        found = self.cgroups.groups(self.domain)
        return [
            group for group in found if (group / "cpu.stat").exists() or (group / "cpuacct.usage").exists()
        ]

    def periods(self) -> int:
        """How many periods of a quota it has run in."""
        (group,) = (group for group in self.groups if (group / "cpu.stat").exists())
        table = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return int(table["nr_periods"])

    @asynccontextmanager
    async def burning(self) -> AsyncIterator[None]:
        """Processes of the zone, in a group of the greatest weight that it makes for itself."""
        mine = []
        for group in self.groups:
            mine.append(group / "hostile")
            mine[-1].mkdir()
            _weigh(mine[-1])
        burners = [
            await asyncio.create_subprocess_exec("sh", "-c", "read _; while :; do :; done", stdin=-1)
            for _ in range(BURNERS)
        ]
        try:
            for burner in burners:
                for group in mine:
                    (group / "cgroup.procs").write_text(str(burner.pid))
                assert burner.stdin
                burner.stdin.close()
            yield
        finally:
            for burner in burners:
                burner.kill()
                await burner.wait()


async def _run(
    node: CriNode, client: Client, name: str, handler: str = "wide", **resources: int
) -> tuple[str, Zone]:
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, uid=name, namespace="default"),
        linux=cri.LinuxPodSandboxConfig(resources=cri.LinuxContainerResources(**resources)),
    )
    cgroups = Cgroups(find_hierarchies(), instance(node.protectd.run_dir).removeprefix("xenpod-"))
    before = cgroups.domains()
    request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
    made = (await client.runtime.RunPodSandbox(request, timeout=60)).pod_sandbox_id
    (domain,) = cgroups.domains() - before
    zone = Zone(cgroups, str(UUID(domain)))
    for group in zone.groups:  # whatever else this machine does, it does later
        _weigh(group.parent)
    return made, zone


def _weigh(group: Path) -> None:
    """Give it the greatest weight that there is."""
    for name, most in (("cpu.shares", "262144"), ("cpu.weight", "10000")):
        if (group / name).exists():
            (group / name).write_text(most)


async def _used(seconds: float, *zones: Zone) -> list[int]:
    """What each uses, in ns, while they use so many CPU seconds together."""
    before = [zone.used_ns for zone in zones]
    async with asyncio.timeout(240):
        while True:
            used = [zone.used_ns - was for zone, was in zip(zones, before, strict=True)]
            if sum(used) >= seconds * SECOND:
                return used
            await asyncio.sleep(0.1)


async def test_an_honest_zone_keeps_what_it_asked_for(node: CriNode) -> None:
    """The kubelet's figures: a request of one CPU, and of nothing."""
    async with node.client() as client:
        _, honest = await _run(node, client, "honest", cpu_shares=1024)
        _, hostile = await _run(node, client, "hostile", cpu_shares=2)
        async with hostile.burning(), honest.burning():
            await _used(1, honest, hostile)
            kept, taken = await _used(6, honest, hostile)
    assert kept > 5 * taken, f"honest {kept / SECOND:.2f} s, hostile {taken / SECOND:.2f} s"


async def test_a_zone_gets_no_more_than_its_limit_while_cpus_are_idle(node: CriNode) -> None:
    """A limit of a fifth of a CPU, and a tenth for the zone's own kernel and agent."""
    async with node.client() as client:
        _, hostile = await _run(node, client, "hostile", "xenpod", cpu_quota=PERIOD // 5, cpu_period=PERIOD)
        async with hostile.burning():
            await _used(0.2, hostile)
            since = hostile.periods()
            (taken,) = await _used(1, hostile)
            periods = hostile.periods() - since
    # One period has begun before the first look.
    assert taken <= (periods + 1) * PERIOD * 1000 * 0.3 * 1.2, f"{taken / SECOND:.2f} s in {periods} periods"
