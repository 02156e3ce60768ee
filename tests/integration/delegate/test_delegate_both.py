"""Pods of both kinds at once: each pod is listed once, with the data of its runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.events import Events
from tests.support.delegate.containerd import needs_containerd
from tests.support.delegate.mixed import HOST, KINDS, PATIENCE, ZONE, Mixed, can
from tests.support.waiting import until
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_node, needs_containerd, pytest.mark.asyncio(loop_scope="module")]

MIB = 1 << 20


async def two_of_each(mixed: Mixed) -> dict[str, list[tuple[Pod, str]]]:
    """Make two pods of each kind with a running container, in turns."""
    made: dict[str, list[tuple[Pod, str]]] = {kind: [] for kind in KINDS}
    for number in range(2):
        for kind in KINDS:
            pod = await mixed.pod(f"web-{number}-{kind}", kind)
            made[kind].append((pod, await mixed.started(pod)))
    return made


def ids(made: dict[str, list[tuple[Pod, str]]], *kinds: str) -> tuple[list[str], list[str]]:
    """The sorted ids of pods and of containers."""
    chosen = [one for kind in kinds or KINDS for one in made[kind]]
    return sorted(pod.id for pod, _ in chosen), sorted(container for _, container in chosen)


async def test_lists_have_each_pod_and_container_once(mixed: Mixed) -> None:
    made = await two_of_each(mixed)
    pods, containers = ids(made)
    assert sorted(await mixed.pods()) == pods
    assert sorted(await mixed.containers()) == containers
    on_host = ids(made, HOST)
    assert sorted(await mixed.direct.pods()) == on_host[0], "no zone is containerd's"
    async with mixed.node.protectd.clients() as clients:
        zones = await clients.zones.ListZones(pb.ListZonesRequest(), timeout=PATIENCE)
    assert len(zones.zones) == 2, "no container of the host is a zone"


async def test_streamed_lists_have_each_once(mixed: Mixed) -> None:
    made = await two_of_each(mixed)
    runtime = mixed.runtime
    pods = [
        one.id
        async for part in runtime.StreamPodSandboxes(cri.StreamPodSandboxesRequest(), timeout=PATIENCE)
        for one in part.pod_sandboxes
    ]
    containers = [
        one.id
        async for part in runtime.StreamContainers(cri.StreamContainersRequest(), timeout=PATIENCE)
        for one in part.containers
    ]
    assert (sorted(pods), sorted(containers)) == ids(made)


async def test_filters_hold_on_both_sides(mixed: Mixed) -> None:
    made = await two_of_each(mixed)
    for kind in KINDS:
        (pod, container), (other, ended) = made[kind]
        labels = {"kind": kind, "app": "web"}
        assert await mixed.pods(id=pod.id) == [pod.id]
        assert await mixed.pods(id=pod.id[:20]) == [pod.id], "an unambiguous beginning"
        assert sorted(await mixed.pods(label_selector=labels)) == ids(made, kind)[0]
        assert await mixed.pods(id=pod.id, label_selector={"kind": "neither"}) == []
        assert await mixed.containers(id=container) == [container]
        assert await mixed.containers(pod_sandbox_id=pod.id) == [container]
        assert sorted(await mixed.containers(label_selector=labels)) == ids(made, kind)[1]
        stop = cri.StopContainerRequest(container_id=ended, timeout=0)
        await mixed.runtime.StopContainer(stop, timeout=PATIENCE)
        await mixed.runtime.StopPodSandbox(
            cri.StopPodSandboxRequest(pod_sandbox_id=other.id), timeout=PATIENCE
        )
    states = cri.ContainerStateValue(state=cri.CONTAINER_EXITED)
    assert sorted(await mixed.containers(state=states)) == sorted(made[kind][1][1] for kind in KINDS)
    ready = cri.PodSandboxStateValue(state=cri.SANDBOX_READY)
    assert sorted(await mixed.pods(state=ready)) == sorted(made[kind][0][0].id for kind in KINDS)
    assert sorted(await mixed.pods(label_selector={"app": "web"})) == ids(made)[0]


async def test_statuses_come_from_the_pods_runtime(mixed: Mixed) -> None:
    made = await two_of_each(mixed)
    for kind in KINDS:
        pod, container = made[kind][0]
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True)
        reply = await mixed.runtime.PodSandboxStatus(request, timeout=PATIENCE)
        assert (reply.status.id, reply.status.state) == (pod.id, cri.SANDBOX_READY)
        assert reply.status.runtime_handler == kind and reply.status.network.ip and reply.info
        if kind == HOST:
            past = await mixed.direct.runtime.PodSandboxStatus(request, timeout=PATIENCE)
            assert past.status.SerializeToString(deterministic=True) == reply.status.SerializeToString(
                deterministic=True
            )
        status = await mixed.status(container)
        assert (status.id, status.state) == (container, cri.CONTAINER_RUNNING)
        assert status.labels["kind"] == kind and status.image_ref
    addresses = [await mixed.address(pod) for kind in KINDS for pod, _ in made[kind]]
    assert len(set(addresses)) == 4, "they are in one network"


async def test_containers_of_the_host_see_the_hosts_kernel_and_zones_do_not_see_them(mixed: Mixed) -> None:
    on_host, zone = [await mixed.pod(f"see-{kind}", kind) for kind in KINDS]
    marked = await mixed.started(on_host, "exec sleep 31415")
    inside = await mixed.started(zone)
    assert "31415" in await mixed.output(marked, "cat /proc/1/cmdline")
    assert "31415" not in await mixed.output(inside, "cat /proc/[0-9]*/cmdline")
    assert mixed.delegate.shims() and (await mixed.output(inside, "hostname")) == f"see-{ZONE}"


async def test_logs_of_both_kinds_are_written_and_reopened(mixed: Mixed) -> None:
    for kind in KINDS:
        pod = await mixed.pod(f"log-{kind}", kind)
        container = await mixed.started(pod, f"echo said by {kind}; exec sleep 100000")
        path = Path((await mixed.status(container)).log_path)
        assert path == mixed.client.log(pod)
        await logged(path, f"stdout F said by {kind}\n")
        path.rename(path.with_suffix(".1"))
        await mixed.runtime.ReopenContainerLog(cri.ReopenContainerLogRequest(container_id=container))
        assert path.exists()


async def test_changed_memory_limit_is_shown_for_both_kinds(mixed: Mixed) -> None:
    for kind in KINDS:
        pod = await mixed.pod(f"limits-{kind}", kind)
        container = await mixed.started(pod)
        change = cri.LinuxContainerResources(memory_limit_in_bytes=64 * MIB, cpu_shares=512)
        request = cri.UpdateContainerResourcesRequest(container_id=container, linux=change)
        await mixed.runtime.UpdateContainerResources(request, timeout=PATIENCE)
        if kind == ZONE or await has_resources(mixed, container):
            assert (await mixed.status(container)).resources.linux.memory_limit_in_bytes == 64 * MIB


async def has_resources(mixed: Mixed, container: str) -> bool:
    """Whether this containerd shows resources."""
    request = cri.ContainerStatusRequest(container_id=container)
    return bool((await mixed.direct.runtime.ContainerStatus(request)).status.HasField("resources"))


async def test_statistics_list_pods_of_both_kinds_once(mixed: Mixed) -> None:
    made = await two_of_each(mixed)
    pods, containers = ids(made)

    async def of_containers() -> Sequence[str]:
        found = await mixed.runtime.ListContainerStats(cri.ListContainerStatsRequest(), timeout=PATIENCE)
        return sorted(one.attributes.id for one in found.stats)

    async def of_pods() -> Sequence[str]:
        found = await mixed.runtime.ListPodSandboxStats(cri.ListPodSandboxStatsRequest(), timeout=PATIENCE)
        return sorted(one.attributes.id for one in found.stats)

    await equal(of_containers, containers)
    await equal(of_pods, pods)
    for kind in KINDS:
        pod, container = made[kind][0]
        one = await mixed.runtime.ContainerStats(cri.ContainerStatsRequest(container_id=container))
        assert one.stats.attributes.id == container and one.stats.memory.working_set_bytes.value > 0
        whole = await mixed.runtime.PodSandboxStats(cri.PodSandboxStatsRequest(pod_sandbox_id=pod.id))
        assert whole.stats.attributes.id == pod.id and whole.stats.linux.cpu.usage_core_nano_seconds.value > 0
        wanted = cri.ContainerStatsFilter(label_selector={"kind": kind})
        request = cri.ListContainerStatsRequest(filter=wanted)
        reply = await mixed.runtime.ListContainerStats(request, timeout=PATIENCE)
        assert sorted(one.attributes.id for one in reply.stats) == ids(made, kind)[1]


async def test_metrics_list_pods_of_both_kinds_once(mixed: Mixed) -> None:
    made = await two_of_each(mixed)
    theirs = await can(mixed.direct.runtime.ListMetricDescriptors(cri.ListMetricDescriptorsRequest()))

    async def shown() -> Sequence[str]:
        request = cri.ListPodSandboxMetricsRequest()
        reply = await mixed.runtime.ListPodSandboxMetrics(request, timeout=PATIENCE)
        return sorted(one.pod_sandbox_id for one in reply.pod_metrics)

    await equal(shown, ids(made, *(KINDS if theirs else (ZONE,)))[0])
    reply = await mixed.runtime.ListMetricDescriptors(cri.ListMetricDescriptorsRequest(), timeout=PATIENCE)
    names = [one.name for one in reply.descriptors]
    assert "container_cpu_usage_seconds_total" in names and len(names) == len(set(names))


async def test_events_of_both_kinds_arrive_once(mixed: Mixed) -> None:
    """A containerd before 1.7 has none: who asks hears that, and looks at lists instead."""
    reply = await mixed.direct.runtime.Version(cri.VersionRequest())
    if reply.runtime_version.lstrip("v").startswith(("1.5.", "1.6.")):
        call = mixed.runtime.GetContainerEvents(cri.GetEventsRequest(), timeout=PATIENCE)
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert str(mixed.delegate.socket) in await call.details()
        return
    events = Events(mixed.client)
    expected: list[tuple[str, str]] = []
    for kind in KINDS:
        pod = await mixed.pod(f"events-{kind}", kind)
        container = await mixed.started(pod)
        await mixed.client.remove_container(container)
        await mixed.client.remove_pod(pod.id)
        for each in (pod.id, container):
            expected += [(each, name) for name in ("CREATED", "STARTED", "STOPPED", "DELETED")]
    seen: list[tuple[str, str]] = []
    while len(seen) < len(expected):
        (one,) = await events.next(1)
        if one.container_id in dict(expected):  # both runtimes keep earlier events for late subscribers
            name = cri.ContainerEventType.Name(one.container_event_type)
            seen.append((one.container_id, name.split("_")[1]))
    events.close()
    assert sorted(seen) == sorted(expected)


async def test_status_joins_the_handlers_of_both_runtimes(mixed: Mixed) -> None:
    reply = await mixed.runtime.Status(cri.StatusRequest(verbose=True), timeout=PATIENCE)
    conditions = {one.type: one.status for one in reply.status.conditions}
    assert conditions["RuntimeReady"] and conditions["NetworkReady"]
    handlers = [one.name for one in reply.runtime_handlers]
    assert ZONE in handlers and len(handlers) == len(set(handlers))
    past = await mixed.direct.runtime.Status(cri.StatusRequest(), timeout=PATIENCE)
    assert {one.name for one in past.runtime_handlers} <= {*handlers, ""}
    version = await mixed.runtime.Version(cri.VersionRequest(), timeout=PATIENCE)
    assert version.runtime_name == "xenpod"


async def test_a_handler_of_neither_is_refused(mixed: Mixed) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await mixed.pod("nobodys", "nobodys")
    assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNKNOWN)
    assert "nobodys" in (refused.value.details() or "")
    assert await mixed.pods() == []


async def logged(path: Path, part: str) -> None:
    """Wait until the log has a text."""
    await until(lambda: part in path.read_text(), PATIENCE, path.read_text)


async def equal(look: Callable[[], Awaitable[Sequence[str]]], expected: Sequence[str]) -> None:
    """Wait until both are equal: a runtime has figures of a new pod only after a moment."""
    seen: Sequence[str] = ()

    async def same() -> bool:
        nonlocal seen
        seen = await look()
        return list(seen) == list(expected)

    await until(same, PATIENCE, lambda: f"{seen} are not {expected}")


@pytest.mark.parametrize("network", [cri.POD, cri.NODE], ids=["pod", "node"])
async def test_a_tenants_pod_gets_no_container_on_the_host(
    mixed: Mixed, network: cri.NamespaceMode.ValueType
) -> None:
    """No handler of containerd, and no host network; the namespaces of the zone are allowed."""
    tenant = cri.PodSandboxMetadata(name="tenant", uid="tenant", namespace="tenant")
    options = cri.NamespaceOption(pid=cri.CONTAINER, network=network)
    security = cri.LinuxSandboxSecurityContext(namespace_options=options)
    linux = cri.LinuxPodSandboxConfig(security_context=security)
    for kind in (HOST, "") if network == cri.NODE else (HOST,):
        with pytest.raises(grpc.aio.AioRpcError, match="does not name its namespace 'tenant'") as caught:
            await mixed.pod("tenant", kind, metadata=tenant, linux=linux)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert await mixed.direct.pods() == []
    assert await mixed.pods() == []
    zone = await mixed.pod("tenant", ZONE, metadata=tenant)
    assert await mixed.pods() == [zone.id]
