"""Pods that a runtime could handle differently from others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cluster.api import ApiRefused
from tests.support.cluster.cluster import JOBS, NODE_MEMORY, SMALL, SMALL_MEMORY, Cluster, pod
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import needs_node
from tests.support.protect.daemons import ROOT

pytestmark = [pytest.mark.root, needs_node, needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

LIMITS = "/api/v1/namespaces/default/limitranges"
MIB = 1 << 20


@pytest.mark.parametrize("command", ["/no/such", "/etc/passwd", "/etc"], ids=["missing", "data", "folder"])
async def test_unknown_command_fails_its_pod(cluster: Cluster, command: str) -> None:
    await cluster.create("unable", command)
    ended = await cluster.ended("unable")
    assert (ended["phase"], ended["exitCode"], ended["reason"]) == ("Failed", 128, "StartError")
    assert command in ended["message"]


async def test_unknown_command_fails_its_job(cluster: Cluster) -> None:
    template = {"spec": pod("unused", "/no/such")["spec"]}
    job = {"metadata": {"name": "unable"}, "spec": {"backoffLimit": 1, "template": template}}
    await cluster.api.post(JOBS, job)
    failed = await cluster.api.until(JOBS, "metadata.name=unable", lambda job: _is(job, "Failed"))
    assert failed["status"]["failed"] == 2


async def test_restart_policy_always_repeats_the_start(cluster: Cluster) -> None:
    await cluster.create("always", "/no/such", restartPolicy="Always")
    waiting = await cluster.until("always", lambda pod: _waits(pod) == "CrashLoopBackOff")
    status = waiting["status"]["containerStatuses"][0]
    assert status["restartCount"] >= 1
    assert status["lastState"]["terminated"]["reason"] == "StartError"


@pytest.mark.parametrize(("script", "status"), [("/etc/passwd", 126), ("no-such", 127)])
async def test_a_shells_own_status_passes(cluster: Cluster, script: str, status: int) -> None:
    await cluster.create("shell", "sh", "-c", script)
    ended = await cluster.ended("shell")
    assert (ended["phase"], ended["exitCode"], ended["reason"]) == ("Failed", status, "Error")


async def test_home_of_a_user_whom_the_image_does_not_have(cluster: Cluster) -> None:
    user = {"runAsUser": 4242}
    await cluster.create("home", "sh", "-c", "echo $HOME; exec sleep 1000", securityContext=user)
    assert await cluster.logged("home", lambda log: "\n" in log) == "/\n"
    assert await cluster.exec("home", "sh", "-c", "echo $HOME") == "/\n"


async def test_a_privileged_pod_has_the_devices_of_its_zone(cluster: Cluster) -> None:
    privileged = {"securityContext": {"privileged": True}}
    await cluster.create("devices", "sh", "-c", "cat /proc/misc; find /dev -type c", container=privileged)
    await cluster.ended("devices")
    said = await cluster.log("devices")
    there = {name for name in ("fuse", "tun", "loop-control") if f" {name}\n" in said}
    assert "loop-control" in there
    paths = {"fuse": "/dev/fuse", "tun": "/dev/net/tun", "loop-control": "/dev/loop-control"}
    assert {paths[name] for name in there} <= set(said.splitlines())


@pytest.mark.parametrize("what", ["hostPID", "hostIPC", "hostNetwork"])
async def test_namespaces_of_the_host_are_refused(cluster: Cluster, what: str) -> None:
    await cluster.create(what.lower(), "true", **{what: True})
    said = await cluster.event(what.lower(), "FailedPrecondition")
    assert what in said and "another runtime" in said


@pytest.mark.parametrize(
    "wishes",
    [
        {"securityContext": {"seLinuxOptions": {"level": "s0:c1,c2"}}},
        {"annotations": {"kubernetes.io/ingress-bandwidth": "10M"}},
    ],
    ids=["selinux", "bandwidth"],
)
async def test_wishes_without_effect_do_not_fail_a_pod(cluster: Cluster, wishes: dict[str, Any]) -> None:
    await cluster.create("wishes", "true", **wishes)
    assert (await cluster.ended("wishes"))["phase"] == "Succeeded"


async def test_pods_beyond_the_nodes_memory_are_told_the_numbers(cluster: Cluster) -> None:
    resources = {"resources": {"requests": {"memory": "16Mi"}, "limits": {"memory": "1Gi"}}}
    names = ["one", "two", "three"]
    for name in names[:2]:
        await cluster.create(name, "sleep", "1000", container=resources)
    await cluster.started(*names[:2])
    await cluster.create("three", "sleep", "1000", container=resources)
    said = await cluster.event("three", "ResourceExhausted")
    wanted = 1024 + 96  # and zone.memory_overhead of cri.toml
    total = NODE_MEMORY // MIB
    assert f"needs {wanted} MiB, free are {total - 2 * wanted} MiB of {total} MiB" in said


async def test_a_pod_without_a_limit_gets_its_handlers_memory(cluster: Cluster) -> None:
    await cluster.create("small", "sleep", "1000", runtimeClassName=SMALL)
    await cluster.started("small")
    (zone,) = await cluster.zones()
    assert zone.resources.memory_bytes == SMALL_MEMORY


async def test_objects_of_the_operators_instructions(cluster: Cluster) -> None:
    page = (ROOT / "docs" / "operations" / "size-zones.md").read_text()
    runtime_class, limits = page.partition("```yaml\n")[2].partition("```")[0].split("---\n")
    lists = {"/apis/node.k8s.io/v1/runtimeclasses": runtime_class, LIMITS: limits}
    made = [
        f"{path}/{(await cluster.api.post(path, text))['metadata']['name']}" for path, text in lists.items()
    ]
    try:
        await cluster.create("sized", "sleep", "1000", runtimeClassName="xenpod")
        await cluster.started("sized")
        (zone,) = await cluster.zones()
        assert zone.resources.memory_bytes == (256 + 96) * MIB
        resources = {"resources": {"requests": {"memory": "16Mi"}, "limits": {"memory": "1Gi"}}}
        with pytest.raises(ApiRefused, match="max limit to request ratio"):
            await cluster.create("greedy", "true", container=resources)
    finally:
        for path in made:
            await cluster.api.delete(path)


def _is(job: dict[str, Any], condition: str) -> bool:
    conditions = job["status"].get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def _waits(pod: dict[str, Any]) -> str:
    statuses = pod["status"].get("containerStatuses") or ()
    return next((str(one["state"].get("waiting", {}).get("reason")) for one in statuses), "")
