"""A real kubelet and scheduler on a node of two runtimes: pods of the host and zones side by side."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from protectctl.__main__ import parser
from protectctl.cluster.generate import generate
from tests.support.cluster import mixed as support
from tests.support.cluster.api import PATIENCE, ApiRefused
from tests.support.cluster.cluster import CLASSES, NODE, NODES, PODS, Cluster, pod
from tests.support.cluster.mixed import UNUSED, MixedCluster, conditioned, container_of
from tests.support.cluster.programs import free_ports, needs_kubernetes
from tests.support.cri.cri_daemons import IMAGE, needs_node
from tests.support.cri.kubelet import Kubelet
from tests.support.delegate.containerd import needs_containerd
from tests.support.delegate.mixed import ZONE
from tests.support.waiting import found, until

pytestmark = [
    pytest.mark.root,
    needs_node,
    needs_kubernetes,
    needs_containerd,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
]

COUNTS = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.2; done"
SERVER = "mkdir /www; echo {name} >/www/index.html; echo serves; exec httpd -f -p {port} -h /www"
AGENT = (
    "ls /proc >/host/processes; mkdir /host/made; mount -t tmpfs made /host/made; echo done; "
    "exec sleep 100000"
)
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES = {
    name: f"{_ADMISSION}/{name.replace('policy', 'policies') if name.endswith('y') else name + 's'}"
    for name in (
        *("mutatingadmissionpolicy", "mutatingadmissionpolicybinding"),
        *("validatingadmissionpolicy", "validatingadmissionpolicybinding"),
    )
}
ROOM = 1 << 30
"""Bytes of the disk that other programs may use during the test."""
FOREVER = ("sh", "-c", "echo begins; exec sleep 100000")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_mixed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MixedCluster]:
    async with support.mixed_cluster(tmp_path_factory.mktemp("x")) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def mixed(module_mixed: MixedCluster) -> AsyncIterator[MixedCluster]:
    """The cluster; the test's pods are removed after the test."""
    yield module_mixed
    await module_mixed.tidy()


def server(name: str, port: int) -> tuple[str, ...]:
    """The command of a web server that answers with its name."""
    return "sh", "-c", SERVER.format(name=name, port=port)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder of the host with shared mounts, as /var/lib/kubelet is on a real node."""
    subprocess.run(["mount", "-t", "tmpfs", "shared", str(tmp_path)], check=True)
    try:
        subprocess.run(["mount", "--make-shared", str(tmp_path)], check=True)
        yield tmp_path
    finally:
        subprocess.run(["umount", "-R", str(tmp_path)], check=True)


async def test_pods_on_the_host_run_beside_zones(mixed: MixedCluster, shared: Path) -> None:
    """A DaemonSet in the host's network, an agent as CNI plugins have them, an ordinary pod, two zones."""
    cluster = mixed.cluster
    (port,) = free_ports(1)
    proxy = await mixed.daemon_set("proxy", *server("proxy", port), hostNetwork=True)
    agent = await mixed.daemon_set("agent", "sh", "-c", AGENT, **agent_spec(shared))
    await cluster.create("ordinary", *server("ordinary", 8080), restartPolicy="Always")
    for name in ("zone-one", "zone-two"):
        await mixed.zone(name, *server(name, 8080), restartPolicy="Always")
    names = [proxy, agent, "ordinary", "zone-one", "zone-two"]
    found = dict(zip(names, await cluster.started(*names), strict=True))
    assert len(await cluster.zones()) == 2 and len(mixed.delegate.shims()) == 3
    addresses = {name: pod["status"]["podIP"] for name, pod in found.items()}
    assert addresses[proxy] == addresses[agent] == found[proxy]["status"]["hostIP"]
    assert len({addresses[name] for name in names[1:]}) == 4
    await cluster.logged(agent, lambda log: "done\n" in log)
    assert str(mixed.delegate.pid) in (shared / "processes").read_text().split(), "it sees the host's"
    assert (shared / "made").is_mount(), "and mounts for the host"
    for name, said, at in (
        (proxy, "proxy", port),
        ("ordinary", "ordinary", 8080),
        ("zone-one", "zone-one", 8080),
    ):
        assert await cluster.logged(name, lambda log: "serves\n" in log) == "serves\n"
        assert await cluster.exec(name, "cat", "/www/index.html") == f"{said}\n"
        await until_serves(cluster, name, at)
        assert await mixed.fetched(name, at) == said
    # One network: a zone reaches the ordinary pod, and the ordinary pod a zone.
    for one, other in (("zone-one", "ordinary"), ("ordinary", "zone-two")):
        await until_serves(cluster, other, 8080)
        assert await cluster.exec(one, "wget", "-q", "-O", "-", f"{addresses[other]}:8080") == f"{other}\n"


def agent_spec(shared: Path) -> dict[str, Any]:
    """The spec of a pod that has all namespaces of the host."""
    mount = {"name": "host", "mountPath": "/host", "mountPropagation": "Bidirectional"}
    return {
        "hostNetwork": True,
        "hostPID": True,
        "volumes": [{"name": "host", "hostPath": {"path": str(shared)}}],
        "container": {"securityContext": {"privileged": True}, "volumeMounts": [mount]},
    }


async def until_serves(cluster: Cluster, name: str, port: int) -> None:
    script = f"until wget -q -O /dev/null 127.0.0.1:{port}/index.html; do sleep 0.05; done"
    await cluster.exec(name, "sh", "-c", script)


async def test_the_kubelets_figures_of_both(mixed: MixedCluster) -> None:
    cluster = mixed.cluster
    kubelet = cluster.kubelet
    assert kubelet is not None
    busy = ("sh", "-c", "head -c 8388608 /dev/zero >/held; while :; do :; done")
    limits = {"resources": {"limits": {"cpu": "200m", "memory": "64Mi"}}}
    await cluster.create("busy-host", *busy, container=limits)
    await mixed.zone("busy-zone", *busy, container=limits)
    await cluster.started("busy-host", "busy-zone")
    for name in ("busy-host", "busy-zone"):
        pod = await found(functools.partial(_complete_summary, kubelet, name), PATIENCE)
        (container,) = pod["containers"]
        assert container["memory"]["workingSetBytes"] > 0 and container["logs"]["usedBytes"] >= 0
        assert pod["memory"]["workingSetBytes"] > 0 and pod["network"]["rxBytes"] >= 0


async def _complete_summary(kubelet: Kubelet, name: str) -> dict[str, Any] | None:
    pod = await kubelet.summary(name)
    return pod if _measured(pod) else None


def _measured(pod: dict[str, Any]) -> bool:
    """The figures once they are complete: rates take two readings, and containerd measures files rarely."""
    container: dict[str, Any] = next(iter(pod.get("containers") or ()), {})
    rates = "usageNanoCores" in container.get("cpu", {}) and "usageNanoCores" in pod.get("cpu", {})
    return rates and container.get("rootfs", {}).get("usedBytes", 0) >= 8 << 20


async def test_no_container_restarts_when_daemons_do(mixed: MixedCluster) -> None:
    """Twenty pods; each daemon in turn is killed and started again."""
    cluster = mixed.cluster
    names = [f"{kind}-{number}" for number in range(10) for kind in ("host", "zone")]
    for name in names:
        create = mixed.zone if name.startswith("zone") else cluster.create
        await create(name, "sh", "-c", COUNTS, restartPolicy="Always")
    before = [identity(pod) for pod in await cluster.started(*names)]
    assert {restarts for _, restarts in before} == {0}
    for daemon in (mixed.delegate, cluster.node.daemon, cluster.node.protectd.daemon):
        said = {name: len(lines(await cluster.log(name))) for name in names}
        await daemon.crash()
        await daemon.start()
        for name in names:
            counted = await cluster.logged(name, partial(longer, said[name] + 5))
            assert lines(counted) == list(range(1, len(lines(counted)) + 1)), "no line is lost or repeated"
        await cluster.api.until(NODES, f"metadata.name={NODE}", conditioned("Ready", "True"))
        for name in names[:2]:
            assert await cluster.exec(name, "echo", "hello") == "hello\n"
    # The kubelet has seen all pods again: a pod that starts now comes after a list of both runtimes.
    await cluster.create("late-host", *FOREVER)
    await mixed.zone("late-zone", *FOREVER)
    await cluster.started("late-host", "late-zone")
    assert [identity(pod) for pod in await cluster.started(*names)] == before


def identity(pod: dict[str, Any]) -> tuple[str, int]:
    """The identity of a pod's container, which must not change."""
    status = container_of(pod)
    return status["containerID"], status["restartCount"]


def longer(count: int, log: str) -> bool:
    return len(lines(log)) > count


def lines(log: str) -> list[int]:
    """The complete lines of a text."""
    return [int(line) for line in log[: log.rfind("\n") + 1].split()]


async def test_a_taint_keeps_ordinary_pods_off_and_the_class_brings_zones(
    mixed: MixedCluster, tmp_path: Path
) -> None:
    """Uses the output of ``protect generate`` from this node."""
    cluster = mixed.cluster
    made = await generated(cluster, tmp_path)
    await cluster.create("early", *FOREVER, runtimeClassName=ZONE)
    await cluster.event("early", "didn't match Pod's node affinity/selector")
    label, taint = (line.split()[-1] for line in made["labels.sh"].splitlines())
    key, _, rest = taint.partition("=")
    value, _, effect = rest.partition(":")
    tainted = {"spec": {"taints": [{"key": key, "value": value, "effect": effect}]}}
    node, default = f"{NODES}/{NODE}", "/api/v1/namespaces/default"
    try:
        await cluster.api.patch(node, {"metadata": {"labels": dict([label.split("=")])}} | tainted)
        await cluster.create("ordinary", *FOREVER)
        await cluster.event("ordinary", "untolerated taint")
        await cluster.started("early")
        assert len(await cluster.zones()) == 1
        # The namespace's label gives a pod the class, and a pod with the class gets nothing of the host.
        await cluster.api.patch(default, {"metadata": {"labels": {"xenpod.dev/runtime-class": ZONE}}})
        await until_assigned(cluster)
        await cluster.create("assigned", *FOREVER)
        (pod,) = await cluster.started("assigned")
        assert pod["spec"]["runtimeClassName"] == ZONE and len(await cluster.zones()) == 2
        with pytest.raises(ApiRefused, match="hostNetwork"):
            await cluster.create("greedy", *FOREVER, hostNetwork=True)
        assert (await cluster.api.get(f"{PODS}/ordinary"))["status"]["phase"] == "Pending"
        await cluster.api.patch(node, {"spec": {"taints": None}})
        await cluster.started("ordinary")
        assert len(mixed.delegate.shims()) == 1
    finally:
        await cluster.api.patch(default, {"metadata": {"labels": {"xenpod.dev/runtime-class": None}}})
        await cluster.api.patch(node, {"spec": {"taints": None}})
        for path in POLICIES.values():
            await cluster.api.delete(path)
        await mixed.plain_class()


async def generated(cluster: Cluster, folder: Path) -> dict[str, str]:
    """Run ``protect generate`` for the running node, and apply its objects: the files."""
    words = ["generate", "classes", "assign-class", "keep-off-host", "labels", f"--node={NODE}"]
    words += [f"--cri-socket={cluster.node.daemon.socket}", f"--to={folder}"]
    await generate(parser().parse_args(words))
    made = {path.name: path.read_text() for path in folder.iterdir()}
    await cluster.api.delete(f"{CLASSES}/{ZONE}")
    for name, path in {"runtimeclass": CLASSES, **POLICIES}.items():
        for text in made[f"{name}.yaml"].split("---\n"):
            await cluster.api.post(path, text)
    return made


async def until_assigned(cluster: Cluster) -> None:
    """Wait until a policy acts, which takes a moment."""
    asked = pod("asked", "true", hostNetwork=True)

    async def refused() -> bool:
        try:
            await cluster.api.post(f"{PODS}?dryRun=All", asked)
        except ApiRefused:
            return True
        return False

    await until(refused, PATIENCE)


async def test_a_full_disk_takes_unused_images_and_then_pods_of_both(mixed: MixedCluster) -> None:
    cluster = mixed.cluster
    await mixed.pull_unused()
    await cluster.create("host", *FOREVER)
    await mixed.zone("zone", *FOREVER)
    await cluster.started("host", "zone")
    filling = cluster.folder / "filling"
    least = shutil.disk_usage(cluster.folder).free - 2 * ROOM
    tight = {"nodefs.available": str(least)}
    try:
        settings = mixed.settings | {"evictionHard": tight, "imageMinimumGCAge": "1s"}
        kubelet = await cluster.use_kubelet(shipped=True, evictionPressureTransitionPeriod="1s", **settings)

        async def has_both_pods() -> bool:
            return len(json.loads(await kubelet.get("/pods"))["items"] or ()) >= 2

        await until(has_both_pods, PATIENCE)
        with filling.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 4 * ROOM)
        for name in ("host", "zone"):
            evicted = await cluster.until(name, lambda pod: pod["status"]["phase"] == "Failed")
            assert evicted["status"]["reason"] == "Evicted"
            assert "ephemeral-storage" in evicted["status"]["message"], "it ran until then"

        async def has_no_sandbox() -> bool:
            return not (await cluster.zones() or mixed.delegate.shims())

        await until(has_no_sandbox, PATIENCE)
        left = [name for names in await mixed.images() for name in names]
        assert UNUSED not in left, "on neither side"
        assert left.count(IMAGE) == 2, "pods of both had it"
    finally:
        filling.unlink(missing_ok=True)
        await cluster.use_kubelet(shipped=True, **mixed.settings)
    await cluster.create("after-host", *FOREVER)
    await mixed.zone("after-zone", *FOREVER)
    await cluster.started("after-host", "after-zone")
