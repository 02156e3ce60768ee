"""A compromised zone that burns all the time of its vCPUs, or floods the network past its pod's rates.

The kernel's accounts of the zone and its neighbour give their CPU time. The frames passed are held against
the elapsed time: a slow machine passes fewer.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import grpc.aio
import pytest

from protect.network.namespace import enter, in_own_thread
from protect.toolstack.fake.cgroups import Cgroups
from protect.toolstack.fake.hierarchies import find_hierarchies
from tests.support.cri.cri_daemons import CNI_BIN, CriNode, needs_node
from tests.support.protect.leftovers import instance
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as protect

pytestmark = [pytest.mark.root, needs_node]
needs_plugin = pytest.mark.skipif(not (CNI_BIN / "bandwidth").exists(), reason="needs CNI's bandwidth plugin")

BURNERS = 4
PERIOD = 100_000
SECOND = 10**9


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    """Zones have as many vCPUs as they burn, without another bound."""
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
        """Number of quota periods in which the zone ran."""
        (group,) = (group for group in self.groups if (group / "cpu.stat").exists())
        table = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return int(table["nr_periods"])

    @asynccontextmanager
    async def burning(self) -> AsyncIterator[None]:
        """Processes of the zone, in a group of the greatest weight, made by the zone itself."""
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
    node: CriNode, client: Client, name: str, handler: str = "wide", **resources: Any
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
    for group in zone.groups:  # other work of this machine comes later
        _weigh(group.parent)
    return made, zone


def _weigh(group: Path) -> None:
    """Give the group the greatest weight."""
    for name, most in (("cpu.shares", "262144"), ("cpu.weight", "10000")):
        if (group / name).exists():
            (group / name).write_text(most)


async def _used(seconds: float, *zones: Zone) -> list[int]:
    """CPU time of each group, in ns, during the given CPU seconds of all groups together."""
    before = [zone.used_ns for zone in zones]
    async with asyncio.timeout(240):
        while True:
            used = [zone.used_ns - was for zone, was in zip(zones, before, strict=True)]
            if sum(used) >= seconds * SECOND:
                return used
            await asyncio.sleep(0.1)


async def test_honest_zone_keeps_its_requested_share(node: CriNode) -> None:
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
    # A period has begun before the first look.
    assert taken <= (periods + 1) * PERIOD * 1000 * 0.3 * 1.2, f"{taken / SECOND:.2f} s in {periods} periods"


# -- the network

RATE = 1_000_000
"""Bytes a second."""
FLOOD = 5_000_000
BURST = 262_144
PAYLOAD = 1400
_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20


@pytest.fixture
async def shaped(tmp_path: Path) -> AsyncIterator[CriNode]:
    """With the bandwidth plugin, and a handler that bounds outgoing traffic."""
    made = CriNode(tmp_path)
    conflist = made.conf_dir / "10-xenpod.conflist"
    chain = json.loads(conflist.read_text())
    chain["plugins"].append({"type": "bandwidth", "capabilities": {"bandwidth": True}})
    conflist.write_text(json.dumps(chain))
    made.configure(handlers={"slow": {"egress_bandwidth": 8 * RATE}})
    await made.start()
    yield made
    await made.close()


class Wire:
    """The link between a pod's zone and the host: frames sent and received at both ends."""

    def __init__(self, node: CriNode, zone: int, address: str) -> None:
        self.address = address
        self._bridge = Path("/sys/class/net") / node.bridge.name
        self._zone = zone

    async def flood_out(self) -> None:
        """The zone's kernel sends whole frames to the host, past all queues of its own."""
        gateway = bytes.fromhex((self._bridge / "address").read_text().replace(":", ""))

        def work() -> None:
            netns = os.open(f"/proc/{self._zone}/ns/net", os.O_RDONLY)
            try:
                enter(netns, "the zone's")
            finally:
                os.close(netns)
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
                wire.bind(("eth0", 0))
                wire.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
                frame = gateway + wire.getsockname()[4] + b"\x08\x00" + self._packet()
                _send_all(lambda: wire.send(frame), len(frame))

        await in_own_thread(work)

    async def flood_in(self) -> None:
        """A neighbour on the host's network sends to the pod."""

        def work() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
                wire.connect((self.address, 9))
                _send_all(lambda: wire.send(bytes(PAYLOAD)), PAYLOAD)

        await asyncio.to_thread(work)

    def _packet(self) -> bytes:
        """IPv4 with UDP inside, from the pod to whoever has the frame (RFC 791, 768)."""
        total = 28 + PAYLOAD
        source = socket.inet_aton(self.address)
        header = (
            b"\x45\0" + total.to_bytes(2) + bytes(4) + b"\x40\x11" + bytes(2) + source + source[:3] + b"\1"
        )
        words = sum(int.from_bytes(header[at : at + 2]) for at in range(0, 20, 2))
        header = header[:10] + (~(words + (words >> 16)) & 0xFFFF).to_bytes(2) + header[12:]
        return header + b"\0\x09\0\x09" + (8 + PAYLOAD).to_bytes(2) + bytes(2) + bytes(PAYLOAD)

    def came_out(self) -> int:
        """Bytes received by the host from its pods."""
        return int((self._bridge / "statistics/rx_bytes").read_text())

    def came_in(self) -> int:
        """Bytes received by the zone."""
        lines = Path(f"/proc/{self._zone}/net/dev").read_text().splitlines()
        (counts,) = (line.partition(":")[2].split() for line in lines if line.strip().startswith("eth0:"))
        return int(counts[0])


def _send_all(send: Callable[[], int], size: int) -> None:
    for _ in range(FLOOD // size):
        with suppress(ConnectionRefusedError, BlockingIOError, OSError):
            send()


async def _wire(node: CriNode, annotations: dict[str, str], handler: str = "") -> Wire:
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="hostile", uid="u", namespace="default"), annotations=annotations
    )
    async with node.client() as client, node.protectd.daemon.channel() as link:
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
        made = (await client.runtime.RunPodSandbox(request, timeout=60)).pod_sandbox_id
        shown = await client.runtime.PodSandboxStatus(cri.PodSandboxStatusRequest(pod_sandbox_id=made))
        zone = await protect.ZonesStub(link).GetZone(pb.GetZoneRequest(id=made), timeout=60)
    return Wire(node, zone.domain_id, shown.status.network.ip)


async def _passed(flood: Callable[[], object], count: Callable[[], int]) -> tuple[int, float]:
    """Passed bytes, and the elapsed seconds."""
    begun, before = time.monotonic(), count()
    await flood()  # type: ignore[misc]
    return count() - before, time.monotonic() - begun


def _at_most(seconds: float) -> float:
    """The upper bound for the elapsed time: a full bucket and its rate, some frames' headers included."""
    return BURST + 1.1 * RATE * seconds


@needs_plugin
@pytest.mark.parametrize("way", ["egress", "ingress"])
async def test_a_pods_rate_holds_against_its_zone(shaped: CriNode, way: str) -> None:
    wire = await _wire(shaped, {f"kubernetes.io/{way}-bandwidth": "8M"})
    out = wire.flood_out, wire.came_out
    into = wire.flood_in, wire.came_in
    held, free = (out, into) if way == "egress" else (into, out)
    passed, seconds = await _passed(*held)
    assert 0 < passed <= _at_most(seconds), f"{passed} bytes in {seconds:.1f} s"
    passed, seconds = await _passed(*free)
    assert passed > FLOOD // 2, "the other direction is not shaped"


@needs_plugin
async def test_a_handlers_rate_holds_without_an_annotation(shaped: CriNode) -> None:
    wire = await _wire(shaped, {}, "slow")
    passed, seconds = await _passed(wire.flood_out, wire.came_out)
    assert 0 < passed <= _at_most(seconds), f"{passed} bytes in {seconds:.1f} s"


@needs_plugin
async def test_an_annotation_does_not_raise_the_handlers_rate(shaped: CriNode) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _wire(shaped, {"kubernetes.io/egress-bandwidth": "9M"}, "slow")
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "handlers.slow.egress_bandwidth" in (caught.value.details() or "")
    wire = await _wire(shaped, {"kubernetes.io/egress-bandwidth": "4M"}, "slow")
    passed, seconds = await _passed(wire.flood_out, wire.came_out)
    assert 0 < passed <= BURST + 0.55 * RATE * seconds, f"{passed} bytes in {seconds:.1f} s"
