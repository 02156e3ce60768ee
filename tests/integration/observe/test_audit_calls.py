"""The audit logs of both real daemons: changing calls, in order, with callers, without secrets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from daemonkit.observe.audit.log_files import paths, verify_folder
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.stage import Stage, StageSettings
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

SECRET = "s3cr3t-t0ken"
ON = {"audit": {"to": "file"}}


@pytest.fixture(scope="module")
def stage_settings() -> StageSettings:
    return StageSettings(ON, ON)


def folders(stage: Stage) -> tuple[Path, Path]:
    """Of xenpod-cri and protectd."""
    return (
        stage.node.folder / "state" / "audit" / "xenpod-cri",
        stage.node.protectd.folder / "state" / "audit" / "protectd",
    )


async def said(folder: Path, rpc: str, pod: str = "default/web") -> list[dict[str, Any]]:
    """The entries of a log, once the log has the RPC's call about the pod."""
    entries: list[dict[str, Any]] = []

    def there() -> bool:
        nonlocal entries
        entries = [json.loads(line) for path in paths(folder) for line in path.read_text().splitlines()]
        return any(entry["rpc"].endswith(f"/{rpc}") and entry["pod"] == pod for entry in entries)

    await until(there)
    return entries


async def test_a_pods_life_in_both_logs(stage: Stage) -> None:
    ours, theirs = folders(stage)
    runtime = stage.client.runtime
    await stage.client.pods()
    pod = await stage.client.run_pod("web")
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="main"),
        image=cri.ImageSpec(image=stage.image),
        command=["sh", "-c", f": {SECRET}; sleep 600"],
        envs=[cri.KeyValue(key="TOKEN", value=SECRET.encode())],
        annotations={"note": SECRET},
    )
    created = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
    container = (await runtime.CreateContainer(created, timeout=60)).container_id
    await stage.client.start(container)
    await stage.client.exec(container, "echo", SECRET)
    with pytest.raises(grpc.aio.AioRpcError):
        await stage.client.image.PullImage(
            cri.PullImageRequest(
                image=cri.ImageSpec(image="127.0.0.1:9/none:1"),
                auth=cri.AuthConfig(username="me", password=SECRET),
            ),
            timeout=60,
        )
    await runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod.id), timeout=60)
    await runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod.id), timeout=60)

    whole = await said(ours, "RemovePodSandbox")
    begun = next(n for n, one in enumerate(whole) if one["reply"] == {"pod_sandbox_id": pod.id})
    entries = whole[begun:]
    assert [one["rpc"].partition("/")[2] for one in entries] == [
        "RunPodSandbox", "CreateContainer", "StartContainer", "ExecSync", "PullImage",
        "StopPodSandbox", "RemovePodSandbox",
    ]  # fmt: skip
    assert {one["pod"] for one in entries if one["rpc"].endswith("PullImage")} == {""}
    assert {one["pod"] for one in entries if not one["rpc"].endswith("PullImage")} == {"default/web"}
    assert [one["code"] for one in entries].count("OK") == 6
    assert entries[0]["reply"] == {"pod_sandbox_id": pod.id}
    assert {one["caller"]["pid"] for one in entries} == {os.getpid()}
    of_zone = [one for one in await said(theirs, "DestroyZone") if one["pod"] == "default/web"]
    calls = [one["rpc"].partition("/")[2] for one in of_zone]
    assert calls[:4] == ["CreateZone", "ConnectNetwork", "CreateWorkload", "StartWorkload"]
    assert "Exec" in calls and calls[-1] == "DestroyZone"
    process = stage.node.daemon.process
    assert process is not None
    assert {one["caller"]["pid"] for one in of_zone} == {process.pid}
    assert {one["caller"]["executable"] for one in of_zone} == {os.path.realpath(sys.executable)}
    for folder in (ours, theirs):
        assert all(SECRET not in path.read_text() for path in paths(folder))
        assert verify_folder(folder).wrong == []


async def test_a_chain_survives_a_killed_daemon(stage: Stage) -> None:
    ours, theirs = folders(stage)
    await stage.client.run_pod("one")
    for daemon in (stage.node.protectd.daemon, stage.node.daemon):
        assert daemon.process is not None
        daemon.process.kill()
        await daemon.process.wait()
        await daemon.start()
    async with stage.node.client() as client:
        await client.run_pod("two")
    await said(ours, "RunPodSandbox", "default/two")
    await said(theirs, "ConnectNetwork", "default/two")
    for folder in (ours, theirs):
        assert verify_folder(folder).wrong == []
