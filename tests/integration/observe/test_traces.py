"""One RunPodSandbox as a trace: from the kubelet's span through both daemons to the zone's agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.support.cri.cri_daemons import CriNode, needs_node, pulled
from tests.support.observe.collector import Collector, ReceivedSpan, collecting
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]

KUBELET = "00f067aa0ba902b7"


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as collector:
        yield collector


@pytest.fixture
async def node(tmp_path: Path, collector: Collector) -> AsyncIterator[CriNode]:
    node = CriNode(tmp_path, settings={"traces": {"endpoint": collector.endpoint}})
    node.protectd.configure(traces={"endpoint": collector.endpoint})
    try:
        await node.start()
        yield node
    finally:
        await node.close()


def path_to_root(spans: list[ReceivedSpan], name: str) -> list[str]:
    """The names from a span up to the child of the kubelet's span."""
    by_id = {one.span.span_id: one for one in spans}
    (current,) = (one for one in spans if one.name == name)
    path = [current.name]
    while current.span.parent_span_id.hex() != KUBELET:
        current = by_id[current.span.parent_span_id]
        path.append(current.name)
    return path


def whole(spans: list[ReceivedSpan], name: str) -> trace_pb2.Span:
    (found,) = (one.span for one in spans if one.name == name)
    return found


async def run(node: CriNode, name: str, *metadata: tuple[str, str]) -> str:
    async with node.client() as client:
        pod = cri.PodSandboxMetadata(name=name, uid=name, namespace="default")
        config = cri.PodSandboxConfig(metadata=pod, hostname=name, log_directory=str(node.logs / name))
        request = cri.RunPodSandboxRequest(config=config)
        reply = await client.runtime.RunPodSandbox(request, timeout=60, metadata=metadata)
        return str(reply.pod_sandbox_id)


async def test_pod_start_is_a_single_trace_below_the_kubelets_span(
    node: CriNode, collector: Collector
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    run_pod, create, connect = (
        "runtime.v1.RuntimeService/RunPodSandbox",
        "protect.v1.Zones/CreateZone",
        "protect.v1.Zones/ConnectNetwork",
    )
    pod = await run(node, "traced", ("traceparent", f"00-{trace}-{KUBELET}-01"))
    spans = await collector.of_trace(trace, run_pod, "network.splice", connect)

    assert {one.service for one in spans} == {"xenpod-cri", "protectd"}
    assert path_to_root(spans, run_pod) == [run_pod]
    plugins = [one for one in spans if one.name == "cni.add"]
    assert plugins and all(one.span.parent_span_id == whole(spans, run_pod).span_id for one in plugins)
    # protectd's part hangs below xenpod-cri's calls (client, then server), step by step down to the agent.
    for step in ("zone.admit", "domain.create", "zone.boot"):
        assert path_to_root(spans, step) == [step, create, create, run_pod]
    assert path_to_root(spans, "network.splice") == ["network.splice", connect, connect, run_pod]
    asked = path_to_root(spans, "agent.configure_zone")
    assert asked == ["agent.configure_zone", "zone.configure", create, create, run_pod]
    asked = path_to_root(spans, "agent.configure_network")
    assert asked == ["agent.configure_network", connect, connect, run_pod]
    # Steps are in order, and within the whole.
    created, booted = whole(spans, "domain.create"), whole(spans, "zone.boot")
    assert created.end_time_unix_nano <= booted.start_time_unix_nano
    begun = whole(spans, run_pod).start_time_unix_nano
    assert all(begun <= one.span.start_time_unix_nano for one in spans)
    assert {a.value.string_value for a in booted.attributes if a.key == "zone"} == {pod}


async def test_spans_from_the_zone_are_below_spans_of_the_host(
    node: CriNode, collector: Collector, tmp_path: Path
) -> None:
    """The guest's boot is below the host's boot, and each crun below its call."""
    trace = "5bf92f3577b34da6a3ce929d0e0e4736"
    context = ("traceparent", f"00-{trace}-{KUBELET}-01")
    async with pulled(node, tmp_path / "registry") as image, node.client() as client:
        pod = await run(node, "timed", context)
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main"),
            image=cri.ImageSpec(image=image),
            command=["sleep", "1000"],
        )
        request = cri.CreateContainerRequest(pod_sandbox_id=pod, config=config)
        create: Any = client.runtime.CreateContainer(request, timeout=60, metadata=(context,))
        container = (await create).container_id
        start = cri.StartContainerRequest(container_id=container)
        await client.runtime.StartContainer(start, timeout=60, metadata=(context,))
        execute = cri.ExecSyncRequest(container_id=container, cmd=["true"])
        await client.runtime.ExecSync(execute, timeout=60, metadata=(context,))
    ended = [f"runtime.v1.RuntimeService/{rpc}" for rpc in ("RunPodSandbox", "StartContainer", "ExecSync")]
    steps = {
        "guest.mounts": "zone.boot",
        "guest.cgroups": "zone.boot",
        "guest.interface": "agent.configure_network",
        "guest.disks": "agent.create_container",
        "guest.rootfs": "agent.create_container",
        "guest.crun_create": "agent.start_container",
        "guest.crun_start": "agent.start_container",
    }
    spans = await collector.of_trace(trace, *ended, *steps, *steps.values())
    for name, above in steps.items():
        child, parent = whole(spans, name), whole(spans, above)
        assert child.parent_span_id == parent.span_id
        assert parent.start_time_unix_nano <= child.start_time_unix_nano
        assert child.end_time_unix_nano <= parent.end_time_unix_nano
        assert {a.key for a in child.attributes} == {"untrusted", "reported_us"}


async def test_only_traced_calls_of_the_caller_are_traced(node: CriNode, collector: Collector) -> None:
    plain, unsampled, sampled = "", "1" * 32, "2" * 32
    await run(node, "plain")
    await run(node, "unsampled", ("traceparent", f"00-{unsampled}-{KUBELET}-00"))
    await run(node, "wrong", ("traceparent", "00-nonsense"))
    await run(node, "sampled", ("traceparent", f"00-{sampled}-{KUBELET}-01"))
    await collector.of_trace(sampled, "runtime.v1.RuntimeService/RunPodSandbox", "zone.boot")
    assert plain not in {one.trace for one in collector.spans}
    assert {one.trace for one in collector.spans} == {sampled}


async def test_missing_collector_costs_no_pod(tmp_path: Path) -> None:
    node = CriNode(tmp_path, settings={"traces": {"endpoint": "http://127.0.0.1:9", "sampling": 1.0}})
    node.protectd.configure(traces={"endpoint": "http://127.0.0.1:9", "sampling": 1.0})
    try:
        await node.start()
        assert await run(node, "web")
    finally:
        await node.close()
    assert node.daemon.process is None or node.daemon.process.returncode == 0
