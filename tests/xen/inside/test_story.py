"""The whole story on Xen: both daemons, a real image, CNI, zones with kernels of their own."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import grpc.aio
import pytest
import pytest_asyncio

from tests.support.cri.cri_daemons import CriNode, broken, container_status, pulled
from tests.support.protect.daemons import Daemon
from tests.support.waiting import until
from tests.xen import machine
from tools.localnode.cri_client import Client, Pod
from xenbind import domain
from xenbind.context import Context
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE = 300.0
COUNT = "n=0; while [ $n -lt {last} ]; do n=$((n+1)); echo line $n; sleep 0.2; done; exit 42"


@dataclass
class Bench:
    """A node with an image."""

    node: CriNode
    client: Client
    image: str

    async def run_pod(self, name: str, handler: str = "") -> Pod:
        """RunPodSandbox by a runtime handler."""
        metadata = cri.PodSandboxMetadata(name=name, namespace="default", uid=str(uuid4()))
        config = cri.PodSandboxConfig(
            metadata=metadata, hostname=name, log_directory=str(self.node.logs / metadata.uid)
        )
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
        reply = await self.client.runtime.RunPodSandbox(request, timeout=PATIENCE)
        return Pod(reply.pod_sandbox_id, config)

    async def address(self, pod: Pod) -> str:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id)
        status = (await self.client.runtime.PodSandboxStatus(request, timeout=PATIENCE)).status
        assert status.network.ip
        return status.network.ip

    async def started(self, pod: Pod, script: str) -> str:
        container = await self.client.create(pod, self.image, ["sh", "-c", script])
        await self.client.start(container)
        return container

    async def exited(self, container: str) -> cri.ContainerStatus:
        """The pod's status after its end."""
        status = cri.ContainerStatus()

        async def ended() -> bool:
            nonlocal status
            status = await container_status(self.client, container)
            return status.state == cri.CONTAINER_EXITED

        await until(ended, PATIENCE)
        return status

    async def logged(self, pod: Pod, text: str) -> list[str]:
        """The container's log lines, as soon as they contain ``text``."""

        async def there() -> bool:
            return text in self.lines(pod)

        await until(there, PATIENCE)
        return self.lines(pod)

    def lines(self, pod: Pod) -> list[str]:
        log = self.client.log(pod)
        text = log.read_text() if log.exists() else ""
        return [line.split(" ", 3)[3] for line in text.splitlines()]

    async def nothing_left(self) -> None:
        async def clean() -> bool:
            return not (self.node.leftovers() or _domains() or _interfaces())

        try:
            await until(clean, PATIENCE)
        except TimeoutError:
            raise AssertionError((self.node.leftovers(), _domains(), _interfaces())) from None


def _domains() -> list[str]:
    with Context() as context:
        return [info.name or str(info.domid) for info in domain.domains(context) if info.domid]


def _interfaces() -> list[str]:
    return [name for name in os.listdir("/sys/class/net") if re.fullmatch(r"vif\d+\.\d+", name)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder = tmp_path_factory.mktemp("story")
    node = CriNode(folder)
    # In emulation PV is twice as fast: all tests but one run in PV. The other profile names no mode, and the
    # default mode of this host is PVH.
    profiles = {"default": {"memory": "128MiB", "mode": "pv"}, "auto": {"memory": "128MiB"}}
    # For _crash: otherwise Debian's kernels ignore the host's crash key.
    libxl = {"kernel_arguments": "quiet sysrq_always_enabled"}
    # If other programs use this machine, a PVH zone of emulated Xen may need more than the default's minute
    # to boot.
    timeouts = {"boot": f"{PATIENCE:.0f}s"}
    node.protectd.configure(toolstack="libxl", profiles=profiles, libxl=libxl, timeouts=timeouts)
    node.configure(handlers={"xenpod": {}, "auto": {"profile": "auto"}})
    await node.start()
    try:
        async with pulled(node, folder / "registry") as image, node.client() as client:
            yield Bench(node, client, image)
    finally:
        await node.close()


@pytest.mark.parametrize(
    ("handler", "mode"),
    [("xenpod", protect_pb2.ZONE_MODE_PV), ("auto", protect_pb2.ZONE_MODE_PVH)],
    ids=["xenpod", "auto"],
)
async def test_a_pod_runs_from_run_to_remove(
    bench: Bench, handler: str, mode: protect_pb2.ZoneMode.ValueType
) -> None:
    pod = await bench.run_pod("story", handler)
    address = await bench.address(pod)
    container = await bench.started(pod, "uname -r; cat /proc/cmdline; hostname; exec sleep 1000")
    lines = await bench.logged(pod, "story")
    assert lines[0] == machine.zone_kernel().name.removeprefix("vmlinuz-")
    assert "XENPOD_CHANNEL=vchan" in lines[1]
    async with bench.node.protectd.clients() as clients:
        facts = await clients.zones.ZoneFacts(protect_pb2.ZoneFactsRequest(id=pod.id), timeout=PATIENCE)
        info = await clients.host.Info(protect_pb2.InfoRequest(), timeout=PATIENCE)
        zone = await clients.zones.GetZone(protect_pb2.GetZoneRequest(id=pod.id), timeout=PATIENCE)
    assert (facts.hypervisor_type, facts.pid1) == ("xen", "init")
    assert info.security_boundary and zone.mode == mode
    assert not [notice for notice in info.notices if "mode auto" in notice]
    reply = await bench.client.exec(container, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (reply.stdout, reply.stderr, reply.exit_code) == (b"out\n", b"err\n", 3)
    assert await _ping(address)
    request = cri.ContainerStatsRequest(container_id=container)
    stats = (await bench.client.runtime.ContainerStats(request, timeout=PATIENCE)).stats
    assert stats.memory.working_set_bytes.value > 0
    await bench.client.remove_container(container)
    await bench.client.remove_pod(pod.id)
    await bench.nothing_left()


async def _ping(address: str) -> bool:
    command = ("ping", "-c", "1", "-W", "10", address)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    return await process.wait() == 0


async def test_pods_reach_each_other_and_a_crashing_pod_ends_alone(bench: Bench) -> None:
    first, second = await asyncio.gather(bench.run_pod("first"), bench.run_pod("second"))
    address = await bench.address(second)
    container = await bench.started(first, "exec sleep 1000")
    other = await bench.started(second, "echo served > /tmp/index.html; exec httpd -f -p 8080 -h /tmp")
    script = f"until wget -q -O - http://{address}:8080/; do sleep 0.2; done"
    reply = await bench.client.exec(container, "sh", "-c", script)
    assert (reply.stdout, reply.exit_code) == (b"served\n", 0), reply.stderr
    await _crash(second)
    status = await bench.exited(other)
    assert status.exit_code != 0
    assert (await container_status(bench.client, container)).state == cri.CONTAINER_RUNNING
    for pod in (first, second):
        await bench.client.remove_pod(pod.id)
    await bench.nothing_left()


async def _crash(pod: Pod) -> None:
    """The kernel of the pod's zone panics."""
    with Context() as context:
        name = pod.config.metadata.name
        domid = next(info.domid for info in domain.domains(context) if name in info.name)
    process = await asyncio.create_subprocess_exec("xl", "sysrq", str(domid), "c")
    assert await process.wait() == 0


async def test_both_daemons_killed_while_a_container_runs_and_ends(bench: Bench) -> None:
    pod = await bench.run_pod("survivor")
    container = await bench.started(pod, COUNT.format(last=60))
    await bench.logged(pod, "line 5")
    await bench.node.protectd.daemon.crash()
    await bench.node.daemon.crash()
    await bench.node.start()
    status = await bench.exited(container)
    assert status.exit_code == 42
    assert bench.lines(pod) == [f"line {number}" for number in range(1, 61)]
    await bench.client.remove_pod(pod.id)
    await bench.nothing_left()


async def test_an_end_while_the_daemon_is_down_is_not_lost(bench: Bench) -> None:
    pod = await bench.run_pod("orphan")
    container = await bench.started(pod, "echo begun; sleep 3; echo ended; exit 42")
    await bench.logged(pod, "begun")
    await bench.node.protectd.daemon.crash()
    await asyncio.sleep(6)  # the container ends in the meantime
    await bench.node.protectd.daemon.start()
    assert (await bench.exited(container)).exit_code == 42
    assert bench.lines(pod) == ["begun", "ended"]
    await bench.client.remove_pod(pod.id)
    await bench.nothing_left()


STEPS = ("zone-create.domain-created", "zone-connect.spliced", "workload-create.disk-attached")


@pytest.mark.parametrize("step", STEPS)
async def test_protectd_killed_on_the_way(bench: Bench, step: str) -> None:
    """After a failed call the pod is whole, or nothing is left."""
    await _kill_at(bench, step)
    with pytest.raises(grpc.aio.AioRpcError):
        pod = await bench.run_pod("killed")
        await bench.started(pod, "exec sleep 1000")
    daemon = bench.node.protectd.daemon
    assert await daemon.ended(PATIENCE) == -9
    bench.node.protectd.configure(faults={"kill_at": ""})
    await daemon.start()
    await _serves(bench)
    for left in await bench.client.pods():
        await bench.client.remove_pod(left)
    await bench.nothing_left()


async def _kill_at(bench: Bench, step: str) -> None:
    daemon: Daemon = bench.node.protectd.daemon
    await daemon.stop()
    bench.node.protectd.configure(faults={"kill_at": step})
    await daemon.start()
    await _serves(bench)


async def _serves(bench: Bench) -> None:
    async def ready() -> bool:
        reply = await bench.client.runtime.Status(cri.StatusRequest(), timeout=PATIENCE, wait_for_ready=True)
        return not broken(reply)

    await until(ready, PATIENCE)


async def test_consoles_are_kept_while_zones_live() -> None:
    """Consoles are removed with their zones, and names of the past do not pile up."""
    names = [path.name for path in Path("/var/log/xen/console").glob("guest-*.log")]
    assert not [name for name in names if re.search("story|survivor|orphan", name)]
