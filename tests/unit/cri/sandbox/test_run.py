"""Pods over a protect.v1 in memory: callers' views, and leftovers of each failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from cri import daemon
from cri.config import HandlerConfig
from cri.rpc import runtime
from cri.rpc.runtime import RuntimeService
from cri.sandbox import reconcile
from cri.state.sandbox import SandboxPhase
from daemonkit.faults import Broken, Exhausted, Fault, Refused, Unreachable
from tests.support.cri.cri_node import Rig, node_config, pod_config, rig
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc as rpc
from xenpod_proto.protect.v1 import protect_pb2 as pb


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def test_a_pod_from_run_to_remove(node: Rig) -> None:
    pod = await node.pod(hostname="web-0")
    container = await node.started(pod)
    never = await node.container(pod, "never-started")
    sandbox = await node.pod_status(pod)
    assert sandbox.state == cri.SANDBOX_READY
    assert sandbox.network.ip == "10.0.0.1"
    assert [extra.ip for extra in sandbox.network.additional_ips] == ["fd00::1"]
    assert node.protect.zone_requests[pod].hostname == "web-0"
    assert node.protect.networks[pod].interface == "eth0"
    await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    sandbox = await node.pod_status(pod)
    assert (sandbox.state, sandbox.network.ip) == (cri.SANDBOX_NOTREADY, "")
    assert (await node.status(container)).exit_code == 128 + 9
    assert (await node.status(never)).message == "its pod was stopped"
    assert not node.protect.zones and not node.network.attached
    await node.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    assert await node.pods() == [] and await node.containers() == []
    assert not node.images.held


PORTS, PING = "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"


def _mapped(host_id: int, length: int) -> cri.LinuxPodSandboxConfig:
    mapping = cri.IDMapping(host_id=host_id, container_id=0, length=length)
    users = cri.UserNamespace(mode=cri.POD, uids=[mapping], gids=[mapping])
    options = cri.NamespaceOption(userns_options=users)
    return cri.LinuxPodSandboxConfig(
        security_context=cri.LinuxSandboxSecurityContext(namespace_options=options)
    )


@pytest.mark.parametrize(
    ("linux", "expected"),
    [
        (None, {PORTS: "0", PING: "0 2147483647"}),
        (cri.LinuxPodSandboxConfig(sysctls={PORTS: "1024"}), {PORTS: "1024", PING: "0 2147483647"}),
        (
            cri.LinuxPodSandboxConfig(sysctls={PING: "1 0", "net.x": "3"}),
            {PORTS: "0", PING: "1 0", "net.x": "3"},
        ),
        (_mapped(65536, 65536), {PORTS: "0", PING: "65536 131071"}),
        (_mapped(2**31 - 10, 100), {PORTS: "0", PING: f"{2**31 - 10} {2**31 - 1}"}),
        (_mapped(2**31, 100), {PORTS: "0"}),
    ],
    ids=["none", "own ports", "own groups", "user namespace", "groups beyond the kernel's", "no such group"],
)
async def test_low_ports_and_ping_are_free_unless_the_pod_says_otherwise(
    node: Rig, linux: cri.LinuxPodSandboxConfig | None, expected: dict[str, str]
) -> None:
    pod = await node.pod(linux=linux)
    assert dict(node.protect.zone_requests[pod].sysctls) == expected


@pytest.mark.parametrize("call", ["StopPodSandbox", "RemovePodSandbox"])
async def test_unknown_pods_stop_and_go_gladly(node: Rig, call: str) -> None:
    request = getattr(cri, f"{call}Request")(pod_sandbox_id="f" * 64)
    await getattr(node.cri, call)(request)
    await getattr(node.cri, call)(request)


async def test_stop_and_remove_may_be_repeated(node: Rig) -> None:
    pod = await node.pod()
    for _ in range(2):
        await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    for _ in range(2):
        await node.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    assert await node.pods() == []


async def test_removing_a_running_pod_stops_the_pod_first(node: Rig) -> None:
    pod = await node.pod()
    container = await node.started(pod)
    await node.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    assert (container, 9) in node.protect.signals
    assert not node.protect.zones and not node.network.attached
    assert await node.containers() == []


async def test_a_retried_request_is_refused_with_the_first_id(node: Rig) -> None:
    pod = await node.pod("web")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.pod("web")
    assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert pod in (raised.value.details() or "")
    await node.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    assert await node.pod("web") != pod


def attempt(number: int) -> cri.PodSandboxMetadata:
    return cri.PodSandboxMetadata(name="web", uid="u", namespace="n", attempt=number)


async def test_another_attempt_begins_when_the_former_has_stopped(node: Rig) -> None:
    first = await node.pod(metadata=attempt(0))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.pod(metadata=attempt(1))
    assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert f"attempt 0, sandbox {first}, is ready" in (raised.value.details() or "")
    await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=first))
    second = await node.pod(metadata=attempt(1))
    assert len(await node.pods()) == 2
    assert list(node.protect.zones) == [second]
    assert node.protect.zone_requests[second].pod_uid == "u"


async def test_another_attempt_waits_for_the_undo_of_the_former(node: Rig) -> None:
    """The zone has the pod's reservation and devices until it is gone."""
    node.protect.failures["CreateZone"] = NO_MEMORY
    undoing = node.protect.stalls["DestroyZone"] = asyncio.Event()
    first = asyncio.create_task(node.pod(metadata=attempt(0)))
    await until(lambda: [one.phase for one in node.daemon.records.sandboxes.all()] == [SandboxPhase.UNDOING])
    del node.protect.failures["CreateZone"]
    second = asyncio.create_task(node.pod(metadata=attempt(1)))
    done, _ = await asyncio.wait([second], timeout=0.3)
    assert not done and len(node.daemon.records.sandboxes.all()) == 1
    undoing.set()
    pod = await second
    with pytest.raises(grpc.aio.AioRpcError):
        await first
    assert list(node.protect.zones) == [pod]


async def test_a_failed_undo_keeps_the_next_attempt_out(node: Rig) -> None:
    node.protect.failures |= {"CreateZone": NO_MEMORY, "DestroyZone": Broken("destroy", "zone", "stuck")}
    with pytest.raises(grpc.aio.AioRpcError):
        await node.pod(metadata=attempt(0))
    del node.protect.failures["CreateZone"]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.pod(metadata=attempt(1))
    assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert "is undoing" in (raised.value.details() or "")
    node.protect.failures.clear()
    await node.pod(metadata=attempt(1))


async def test_two_attempts_at_once_make_a_single_pod(node: Rig) -> None:
    made = await asyncio.gather(
        *(node.pod(metadata=attempt(number)) for number in range(4)), return_exceptions=True
    )
    assert sum(isinstance(one, str) for one in made) == 1
    assert len(node.protect.zones) == 1


NO_MEMORY = Exhausted("reserve", "zone", "no memory")
FAILURES: list[tuple[str, bool, Fault, grpc.StatusCode]] = [
    ("CreateZone", False, NO_MEMORY, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ("CreateZone", True, NO_MEMORY, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ("ConnectNetwork", False, Broken("splice", "zone", "no such device"), grpc.StatusCode.INTERNAL),
]


@pytest.mark.parametrize(("call", "late", "fault", "code"), FAILURES)
async def test_a_failed_run_leaves_nothing(
    node: Rig, call: str, late: bool, fault: Fault, code: grpc.StatusCode
) -> None:
    (node.protect.late_failures if late else node.protect.failures)[call] = fault
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.pod()
    assert raised.value.code() is code
    assert fault.cause in (raised.value.details() or "")
    assert not node.protect.zones and not node.network.attached
    assert node.daemon.records.sandboxes.all() == [] and await node.pods() == []
    node.protect.failures.clear()
    node.protect.late_failures.clear()
    await node.pod()  # the name is free again


async def test_a_failed_network_cancels_the_zone_under_way(node: Rig) -> None:
    node.network.failure = Exhausted("call CNI plugin", "bridge ADD", "no IP addresses available")
    node.protect.stalls["CreateZone"] = asyncio.Event()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.pod()
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not node.network.attached and not node.protect.zones
    assert "DestroyZone" in node.protect.calls


async def test_a_gone_caller_leaves_nothing(node: Rig) -> None:
    node.protect.stalls["ConnectNetwork"] = asyncio.Event()
    request = cri.RunPodSandboxRequest(config=pod_config())
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.RunPodSandbox(request, timeout=0.5)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: not node.daemon.records.sandboxes.all())
    assert not node.protect.zones and not node.network.attached


@pytest.mark.parametrize("call", ["StopPodSandbox", "RemovePodSandbox"])
async def test_an_end_goes_on_without_its_caller(node: Rig, call: str) -> None:
    pod = await node.pod()
    node.protect.stalls["DestroyZone"] = asyncio.Event()
    task = asyncio.ensure_future(getattr(node.cri, call)(getattr(cri, f"{call}Request")(pod_sandbox_id=pod)))
    await until(lambda: "DestroyZone" in node.protect.calls)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pod in node.protect.zones
    node.protect.stalls["DestroyZone"].set()
    if call == "StopPodSandbox":
        await until(lambda: node.daemon.records.sandboxes.get(pod).phase is SandboxPhase.STOPPED)
    else:
        await until(lambda: not node.daemon.records.sandboxes.has(pod))
    assert not node.protect.zones and not node.network.attached
    assert node.protect.calls.count("DestroyZone") == 1


async def test_no_network_configuration_is_a_refusal_before_anything_is_done(node: Rig) -> None:
    node.network.trouble = Refused("load network configuration", "/etc/cni/net.d", "none there")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.pod()
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert node.daemon.records.sandboxes.all() == [] and "CreateZone" not in node.protect.calls
    reply = await node.cri.Status(cri.StatusRequest())
    network = next(c for c in reply.status.conditions if c.type == "NetworkReady")
    assert not network.status and "none there" in network.message


async def test_a_failed_undo_is_finished_later(node: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_RETRY_SECONDS", 0.1)
    node.protect.failures["ConnectNetwork"] = Broken("splice", "zone", "no such device")
    node.protect.failures["DestroyZone"] = Unreachable("destroy", "zone", "gone fishing")
    with pytest.raises(grpc.aio.AioRpcError):
        await node.pod()
    assert len(node.protect.zones) == 1 and await node.pods() == []
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.pod()
    assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS
    node.protect.failures.clear()
    await until(lambda: not node.protect.zones)
    await until(lambda: not node.daemon.records.sandboxes.all())
    await node.pod()


@pytest.mark.parametrize("told", [True, False])
async def test_the_death_of_a_zone_makes_its_pod_not_ready(node: Rig, told: bool) -> None:
    pod = await node.pod()
    container = await node.started(pod)
    await node.protect.crash_zone(pod, "KernelPanic: out of memory", told=told)
    await until(lambda: node.daemon.records.sandboxes.get(pod).death_reason != "")
    assert (await node.pod_status(pod)).state == cri.SANDBOX_NOTREADY
    status = await node.status(container)
    assert (status.state, status.reason) == (cri.CONTAINER_EXITED, "ZoneKernelPanic")
    assert told or status.message == "KernelPanic: out of memory\none\ntwo"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.container(pod, "other")
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "out of memory" in (raised.value.details() or "")
    await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    assert not node.network.attached


async def test_a_failed_stop_can_be_repeated(node: Rig) -> None:
    pod = await node.pod()
    node.network.detach_failure = Broken("call CNI plugin", "bridge DEL", "iptables is gone")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    assert "iptables is gone" in (raised.value.details() or "")
    assert (await node.pod_status(pod)).state == cri.SANDBOX_NOTREADY
    node.network.detach_failure = None
    await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    assert not node.network.attached


async def test_lists_of_pods_are_filtered(node: Rig) -> None:
    red = await node.pod("red", labels={"colour": "red", "app": "x"})
    blue = await node.pod("blue", labels={"colour": "blue", "app": "x"})
    await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=blue))
    assert await node.pods() == [red, blue]
    assert await node.pods(id=red) == [red]
    assert await node.pods(id=red[:13]) == [red]
    assert await node.pods(id="f" * 65) == []
    assert await node.pods(label_selector={"app": "x"}) == [red, blue]
    assert await node.pods(label_selector={"app": "x", "colour": "blue"}) == [blue]
    ready = cri.PodSandboxStateValue(state=cri.SANDBOX_READY)
    assert await node.pods(state=ready) == [red]
    assert await node.pods(state=cri.PodSandboxStateValue(state=cri.SANDBOX_NOTREADY)) == [blue]


async def test_an_id_may_be_shortened_but_not_ambiguous(node: Rig) -> None:
    pod = await node.pod()
    assert (await node.pod_status(pod[:12])).id == pod
    for wanted, code in (("", grpc.StatusCode.INVALID_ARGUMENT), ("nope", grpc.StatusCode.NOT_FOUND)):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await node.pod_status(wanted)
        assert raised.value.code() is code


async def test_sizes_reach_the_zone(node: Rig) -> None:
    noted = await node.pod("noted", annotations={"xenpod.dev/memory": "512Mi", "xenpod.dev/vcpus": "3"})
    linux = cri.LinuxPodSandboxConfig(
        resources=cri.LinuxContainerResources(
            memory_limit_in_bytes=100 << 20, cpu_quota=150_000, cpu_period=100_000
        ),
        overhead=cri.LinuxContainerResources(memory_limit_in_bytes=50 << 20),
    )
    limited = await node.pod("limited", linux=linux)
    plain = await node.pod("plain")
    sizes = {pod: node.protect.zone_requests[pod].resources for pod in (noted, limited, plain)}
    assert (sizes[noted].memory_bytes, sizes[noted].vcpus) == (512 << 20, 3)
    assert (sizes[limited].memory_bytes, sizes[limited].vcpus) == (150 << 20, 2)
    assert (sizes[plain].memory_bytes, sizes[plain].vcpus) == (0, 0)


async def test_handlers_name_profiles(node: Rig) -> None:
    for handler, profile in (("", "default"), ("xenpod", "default"), ("xenpod-gpu", "gpu")):
        pod = await node.pod(f"pod-{handler}x", handler=handler)
        assert node.protect.zone_requests[pod].profile == profile
    assert (await node.pod_status(pod)).runtime_handler == "xenpod-gpu"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.pod("other", handler="runc")
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "xenpod-gpu" in (raised.value.details() or "")


async def test_status_has_the_facts_for_an_operator(node: Rig) -> None:
    reply = await node.cri.Status(cri.StatusRequest(verbose=True))
    conditions = {condition.type: condition for condition in reply.status.conditions}
    ours = {"HandlersReady", "HostPrepared", "ZoneModePreferred"}
    assert set(conditions) == {"RuntimeReady", "NetworkReady", *ours}
    assert conditions["HostPrepared"].status
    assert conditions["RuntimeReady"].status and conditions["NetworkReady"].status
    # protectd does not know the profile "gpu": its handler cannot be honoured here
    assert not conditions["HandlersReady"].status
    cause = "handler xenpod-gpu: protectd has no profile 'gpu' (there are: default)"
    assert conditions["HandlersReady"].message == cause
    assert [handler.name for handler in reply.runtime_handlers] == ["", "xenpod", "xenpod-zone"]
    assert "isolates nothing" in reply.info["notices"]
    assert '"name": "fake"' in reply.info["toolstack"]
    assert {"config", "cni"} <= set(reply.info)


async def test_status_names_settings_of_the_host(node: Rig) -> None:
    """The settings keep no pod from running."""
    node.protect.preflight = [
        pb.HostNotice(setting="dom0_mem", place="Xen's", wanted="2G,max:2G", effect="it balloons")
    ]
    reply = await node.cri.Status(cri.StatusRequest(verbose=True))
    conditions = {condition.type: condition for condition in reply.status.conditions}
    prepared = conditions["HostPrepared"]
    assert (prepared.status, prepared.reason) == (False, "HostSettings")
    assert prepared.message == "dom0_mem is not set, wanted 2G,max:2G in Xen's: it balloons"
    assert conditions["RuntimeReady"].status
    await node.pod()


async def test_no_ordinary_pod_can_run_without_the_default_handlers_profile(tmp_path: Path) -> None:
    handlers = {"xenpod": HandlerConfig(profile="lost"), "fast": HandlerConfig()}
    async with rig(tmp_path, config=replace(node_config(tmp_path), handlers=handlers)) as node:
        reply = await node.cri.Status(cri.StatusRequest())
        ready = {condition.type: condition for condition in reply.status.conditions}
        assert not ready["RuntimeReady"].status and "'lost'" in ready["RuntimeReady"].message
        assert ready["RuntimeReady"].reason == "DefaultHandlerNotReady"
        assert [handler.name for handler in reply.runtime_handlers] == ["fast"]


async def test_without_protectd_the_runtime_is_not_ready_and_reads_still_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_FIRST_SWEEP_SECONDS", 0.1)
    async with rig(tmp_path, serve=False) as node:
        reply = await node.cri.Status(cri.StatusRequest())
        ready = next(c for c in reply.status.conditions if c.type == "RuntimeReady")
        assert not ready.status and ready.reason and ready.message
        assert await node.pods() == []
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await node.pod()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_version_names_xenpod_and_the_api(node: Rig) -> None:
    reply = await node.cri.Version(cri.VersionRequest())
    assert (reply.runtime_name, reply.runtime_api_version) == ("xenpod", "v1") and reply.runtime_version


@pytest.mark.parametrize(("there", "driver"), [(True, cri.SYSTEMD), (False, cri.CGROUPFS)])
async def test_the_cgroup_driver_is_the_hosts(
    node: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, driver: int
) -> None:
    monkeypatch.setattr(runtime, "_SYSTEMD", tmp_path if there else tmp_path / "none")
    reply = await node.cri.RuntimeConfig(cri.RuntimeConfigRequest())
    assert reply.linux.cgroup_driver == driver


async def test_a_checkpoint_is_refused_with_its_reason(node: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.CheckpointContainer(cri.CheckpointContainerRequest(container_id="c1"))
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "its zone's kernel" in (raised.value.details() or "")


def test_every_rpc_exists() -> None:
    """None answers with the generated servicer's own refusal."""
    service = cri.DESCRIPTOR.services_by_name["RuntimeService"]
    generated = rpc.RuntimeServiceServicer
    names = [method.name for method in service.methods]
    assert [name for name in names if getattr(RuntimeService, name) is getattr(generated, name)] == []
