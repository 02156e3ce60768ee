"""Handlers of cri.toml that cannot work on this host end the daemon at its start.

The default handler always exists. Status names the working handlers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protectctl.__main__ import main
from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.protect.daemons import DaemonFailed
from tests.support.waiting import found
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_node]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    made.protectd.configure(profiles={"default": {"memory_max": "512MiB"}})
    await made.protectd.daemon.start()
    yield made
    made.configure(handlers={})
    await made.close()


@pytest.mark.parametrize(
    ("handler", "key", "cause"),
    [
        ({"profile": "pvh"}, "profile", "protectd has no profile 'pvh' (there are: default)"),
        (
            {"memory": "1GiB"},
            "memory",
            "memory of 1024 MiB is not between the 64 and 512 MiB of its profile",
        ),
        (
            {"kernel": "registry.example/kernels/x:1"},
            "kernel",
            "registry.example/kernels/x:1 is not on this host",
        ),
    ],
)
async def test_impossible_handler_ends_the_daemon_at_its_start(
    node: CriNode, handler: dict[str, object], key: str, cause: str
) -> None:
    node.configure(handlers={"fast": handler})
    with pytest.raises(DaemonFailed) as failed:
        await node.daemon.start()
    assert await node.daemon.ended() == 1
    said = f"read configuration {node.daemon.config}: key 'handlers.fast.{key}': "
    assert said in str(failed.value) and cause in str(failed.value)


async def test_ordinary_pods_run_whatever_other_handlers_there_are(node: CriNode) -> None:
    node.configure(handlers={"fast": {}})
    await node.daemon.start()
    async with node.client() as client:
        reply = await client.runtime.Status(cri.StatusRequest(), timeout=60)
        assert [handler.name for handler in reply.runtime_handlers] == ["", "fast", "xenpod"]
        # The fake has no hvm, and the mode is auto by default.
        unmet = {one.type: one.message for one in reply.status.conditions if not one.status}
        assert unmet.keys() == {"ZoneModePreferred"}
        assert "handler fast: mode auto gives pv zones" in unmet["ZoneModePreferred"]
        assert "handler xenpod: mode auto gives pv zones" in unmet["ZoneModePreferred"]
        for name in ("", "fast", "xenpod"):
            metadata = cri.PodSandboxMetadata(name=f"p{name}", namespace="default", uid=f"u{name}")
            request = cri.RunPodSandboxRequest(
                config=cri.PodSandboxConfig(metadata=metadata), runtime_handler=name
            )
            made = await client.runtime.RunPodSandbox(request, timeout=60)
            await client.remove_pod(made.pod_sandbox_id)


async def _handlers(node: CriNode) -> dict[str, str]:
    """``error`` of each handler in ``protect host``."""
    sockets = ["--socket", str(node.protectd.daemon.socket), "--cri-socket", str(node.daemon.socket)]
    shown = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "protectctl", "host", *sockets, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await shown.communicate()
    assert shown.returncode == 0
    rows = (line.strip().partition("  ") for line in output.decode().splitlines())
    return {name.split()[1]: value.strip() for name, _, value in rows if name.startswith("handler ")}


async def test_handler_with_unmet_requirement_is_refused_until_the_host_meets_all(node: CriNode) -> None:
    """An unmet requirement is no fault of the file, which is the same on many hosts."""
    requires = ["hvm", "xen>=4.17", "label:sev-snp", "device:null"]
    node.configure(handlers={"sev": {"mode": "pvh", "requires": requires}})
    await node.daemon.start()
    metadata = cri.PodSandboxMetadata(name="p", namespace="default", uid="u")
    request = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(metadata=metadata), runtime_handler="sev")
    async with node.client() as client:
        reply = await client.runtime.Status(cri.StatusRequest(), timeout=60)
        assert [handler.name for handler in reply.runtime_handlers] == ["", "xenpod"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.runtime.RunPodSandbox(request, timeout=60)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert all(f"requires {one}" in str(caught.value.details()) for one in requires)
        said = await _handlers(node)
        lacking = "mode auto gives pv zones, as this host lacks hvm (VT-x or AMD-V)"
        assert said["xenpod"] == f"yes, pv, {lacking}" and said["sev"].startswith("no: requires hvm, and")
        await node.protectd.daemon.stop()
        node.protectd.configure(
            fake={"hvm": True, "hap": True, "hypervisor_version": "4.17"},
            host={"labels": ["sev-snp"], "devices": {"null": "/dev/null"}},
        )
        await node.protectd.daemon.start()
        made = await _once_protectd_is_back(client, request)
        await client.remove_pod(made)
    said = await _handlers(node)
    assert said["sev"] == said["xenpod"] == "yes, pvh"


async def test_label_without_flask_is_logged_and_its_pods_do_not_run(node: CriNode) -> None:
    label = "system_u:system_r:tenant_a_t"
    node.configure(handlers={"apart": {"seclabel": label}})
    await node.daemon.start()
    lacking = f"its zones have the label {label}, and this host's hypervisor has no FLASK"
    assert lacking in node.daemon.log.read_text()
    metadata = cri.PodSandboxMetadata(name="p", namespace="default", uid="u")
    request = cri.RunPodSandboxRequest(
        config=cri.PodSandboxConfig(metadata=metadata), runtime_handler="apart"
    )
    async with node.client() as client:
        reply = await client.runtime.Status(cri.StatusRequest(), timeout=60)
        assert [handler.name for handler in reply.runtime_handlers] == ["", "xenpod"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.runtime.RunPodSandbox(request, timeout=60)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert lacking in str(caught.value.details())
        await node.protectd.daemon.stop()
        node.protectd.configure(fake={"seclabels": [label]})
        await node.protectd.daemon.start()
        made = await _once_protectd_is_back(client, request)
        async with node.protectd.clients() as clients:
            zone = await clients.zones.GetZone(pb.GetZoneRequest(id=made), timeout=60)
        assert zone.seclabel == label
        await client.remove_pod(made)


async def _once_protectd_is_back(client: Client, request: cri.RunPodSandboxRequest) -> str:
    """xenpod-cri has to hear from the new protectd first; no event shows this from outside."""

    async def tried() -> str:
        try:
            return str((await client.runtime.RunPodSandbox(request, timeout=60)).pod_sandbox_id)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error.details()
            return ""

    return await found(tried)


async def test_the_running_node_and_its_configuration_say_the_same_to_a_cluster(
    node: CriNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.configure(
        handlers={"fast": {"memory": "128MiB", "host_namespaces": "zone"}}, zone={"memory_overhead": "100MiB"}
    )
    await node.daemon.start()
    said = []
    for source in (("--cri-socket", node.daemon.socket), ("--config", node.daemon.config)):
        command = ["generate", "classes", "keep-off-host", "cluster-api", *map(str, source)]
        assert await asyncio.to_thread(main, command) == 0
        said.append(capsys.readouterr())
    assert said[0] == said[1]
    assert "name: fast" in said[0].out and f"unix://{node.daemon.socket}" in said[0].out
    assert 'object.spec.runtimeClassName in ["fast"]' in said[0].out
    assert (said[0].out.count('memory: "128Mi"'), said[0].out.count('memory: "100Mi"')) == (1, 1)
