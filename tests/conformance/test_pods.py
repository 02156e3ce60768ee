"""Pod sandboxes: from RunPodSandbox to RemovePodSandbox, and every way to read them."""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.support.cri.conformance import SuiteStage, refused
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.events import PATIENCE
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]


async def listed(stage: SuiteStage, **fields: object) -> list[str]:
    """Ids by ListPodSandbox; StreamPodSandboxes must give the same ids, each once."""
    wanted = cri.PodSandboxFilter(**fields)  # type: ignore[arg-type]
    reply = await stage.runtime.ListPodSandbox(cri.ListPodSandboxRequest(filter=wanted), timeout=PATIENCE)
    stream = stage.runtime.StreamPodSandboxes(cri.StreamPodSandboxesRequest(filter=wanted), timeout=PATIENCE)
    streamed = [item async for part in stream for item in part.pod_sandboxes]
    assert streamed == list(reply.items)
    return [item.id for item in streamed]


async def status(stage: SuiteStage, pod_id: str, *, verbose: bool = False) -> cri.PodSandboxStatusResponse:
    request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod_id, verbose=verbose)
    reply = await stage.runtime.PodSandboxStatus(request, timeout=PATIENCE)
    assert isinstance(reply, cri.PodSandboxStatusResponse)
    return reply


async def test_status_follows_a_pod_from_run_to_remove(stage: SuiteStage) -> None:
    begun = time.time_ns()
    labels, notes = {"app": "web"}, {"example.com/note": "kept\tas it is"}
    pod = await stage.run_pod("life", labels=labels, annotations=notes)
    try:
        found = (await status(stage, pod.id)).status
        assert found.metadata == pod.config.metadata and found.state == cri.SANDBOX_READY
        assert begun < found.created_at < time.time_ns()
        assert (dict(found.labels), dict(found.annotations)) == (labels, notes)
        assert found.network.ip and found.runtime_handler == "xenpod"
        assert found.linux.namespaces.options == cri.NamespaceOption()
        info = json.loads((await status(stage, pod.id[:16], verbose=True)).info["info"])
        assert info["zone"] == pod.id and info["cniResult"]["ips"]
        container = await stage.started(pod)
        stop = cri.StopPodSandboxRequest(pod_sandbox_id=pod.id)
        await stage.runtime.StopPodSandbox(stop, timeout=PATIENCE)
        assert (await stage.ended(container)).exit_code == 137
        stopped = (await status(stage, pod.id)).status
        assert (stopped.state, stopped.network.ip) == (cri.SANDBOX_NOTREADY, "")
        await stage.runtime.StopPodSandbox(stop, timeout=PATIENCE)
        with refused("FAILED_PRECONDITION", pod.id):
            await stage.create(pod)
    finally:
        remove = cri.RemovePodSandboxRequest(pod_sandbox_id=pod.id)
        await stage.runtime.RemovePodSandbox(remove, timeout=PATIENCE)
    await stage.runtime.RemovePodSandbox(remove, timeout=PATIENCE)
    await stage.runtime.StopPodSandbox(stop, timeout=PATIENCE)
    with refused("NOT_FOUND", pod.id[:64]):
        await status(stage, pod.id)
    assert pod.id not in await listed(stage)
    with refused("NOT_FOUND"):
        await stage.status(container)


async def test_a_request_made_again_is_refused_with_the_first_ones_id(stage: SuiteStage) -> None:
    async with stage.pod("twice") as first:
        with refused("ALREADY_EXISTS", first.id):
            await stage.run_pod("twice", metadata=first.config.metadata)
        again = cri.PodSandboxMetadata()
        again.CopyFrom(first.config.metadata)
        again.attempt += 1
        with refused("ALREADY_EXISTS", first.id):
            await stage.run_pod("twice", metadata=again)
        stop = cri.StopPodSandboxRequest(pod_sandbox_id=first.id)
        await stage.runtime.StopPodSandbox(stop, timeout=PATIENCE)
        async with stage.pod("twice", metadata=again) as second:
            assert second.id != first.id


async def test_pods_are_listed_by_each_filter(stage: SuiteStage) -> None:
    async with (
        stage.pod("one", labels={"set": "both", "name": "one"}) as one,
        stage.pod("two", labels={"set": "both"}) as two,
    ):
        await stage.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=two.id), timeout=PATIENCE)
        ready, not_ready = (
            cri.PodSandboxStateValue(state=state) for state in (cri.SANDBOX_READY, cri.SANDBOX_NOTREADY)
        )
        both = {"set": "both"}
        assert set(await listed(stage)) >= {one.id, two.id}
        assert set(await listed(stage, label_selector=both)) == {one.id, two.id}
        assert await listed(stage, label_selector=both, state=ready) == [one.id]
        assert await listed(stage, label_selector=both, state=not_ready) == [two.id]
        assert await listed(stage, label_selector=both | {"name": "one"}) == [one.id]
        assert await listed(stage, id=two.id) == [two.id]
        assert await listed(stage, id=two.id[:20]) == [two.id]
        assert await listed(stage, id=two.id, state=ready) == []


async def test_sysctls_of_the_pod_are_set_in_its_zone(stage: SuiteStage) -> None:
    """The first is a safe sysctl of Kubernetes, the others are not."""
    wanted = {
        "net.ipv4.ip_local_port_range": "2000 3000",
        "net.core.somaxconn": "77",
        "kernel.msgmax": "8000",
    }
    linux = cri.LinuxPodSandboxConfig(sysctls=wanted)
    async with stage.pod("sysctls", linux=linux) as pod:
        container = await stage.started(pod)
        for name, value in wanted.items():
            path = f"/proc/sys/{name.replace('.', '/')}"
            assert (await stage.output(container, f"cat {path}")).split() == value.split()
    with refused("INVALID_ARGUMENT", "kernel.panic"):
        await stage.run_pod("refused", linux=cri.LinuxPodSandboxConfig(sysctls={"kernel.panic": "1"}))


async def test_invalid_pod_is_refused(stage: SuiteStage) -> None:
    options = cri.NamespaceOption(network=cri.NODE)
    security = cri.LinuxSandboxSecurityContext(namespace_options=options)
    with refused("FAILED_PRECONDITION", "host's network", "another runtime"):
        await stage.run_pod("host", linux=cri.LinuxPodSandboxConfig(security_context=security))
    with refused("INVALID_ARGUMENT", "nosuch"):
        await stage.run_pod("handler", handler="nosuch")
    with refused("INVALID_ARGUMENT"):
        await stage.run_pod("", metadata=cri.PodSandboxMetadata())


async def test_dns_and_host_name_are_the_pods(stage: SuiteStage) -> None:
    """DNS and the host name are the pod's; a control group of the host is taken note of only."""
    dns = cri.DNSConfig(servers=["10.96.0.10"], searches=["svc.test"], options=["ndots:5"])
    linux = cri.LinuxPodSandboxConfig(cgroup_parent="/kubepods/burstable/pod1")
    async with stage.pod("named", dns_config=dns, linux=linux) as pod:
        container = await stage.started(pod)
        expected = "search svc.test\nnameserver 10.96.0.10\noptions ndots:5"
        assert await stage.output(container, "cat /etc/resolv.conf") == expected
        address = (await status(stage, pod.id)).status.network.ip
        hosts = await stage.output(container, "hostname; cat /etc/hostname; cat /etc/hosts")
        assert hosts.splitlines()[:2] == ["named", "named"] and f"{address}\tnamed" in hosts


async def test_resources_of_the_pod(stage: SuiteStage) -> None:
    async with stage.pod("sized") as pod:
        fits = cri.LinuxContainerResources(memory_limit_in_bytes=30 << 20)
        request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod.id, resources=fits)
        await stage.runtime.UpdatePodSandboxResources(request, timeout=PATIENCE)
        with refused("FAILED_PRECONDITION", "MiB wanted, the zone can have"):
            request.resources.memory_limit_in_bytes = 1 << 40
            await stage.runtime.UpdatePodSandboxResources(request, timeout=PATIENCE)


async def test_zone_crash_ends_the_pod(stage: SuiteStage) -> None:
    async with stage.pod(f"crash-{time.time_ns() % 10**9}") as pod:
        container = await stage.started(pod)
        await stage.crash(pod)
        end = await stage.ended(container)
        wanted = "ZoneKernelPanic" if stage.toolstack == "libxl" else "ZoneAgentCrashed"
        assert (end.reason, end.exit_code) == (wanted, 137)
        assert end.message.startswith("the zone ended: its ")
        assert re.search(r"^(\[[ \d.]+\] )?Kernel panic - not syncing: ", end.message, re.MULTILINE)

        async def ended() -> bool:
            return (await status(stage, pod.id)).status.state == cri.SANDBOX_NOTREADY

        await until(ended, PATIENCE)  # containers are told first
