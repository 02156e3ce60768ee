"""Mounts of a real kubelet that the zones have themselves: no pod here shares a path."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import IMAGE, needs_node

pytestmark = [pytest.mark.root, needs_node, needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

MAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
TOUCH = {"metadata": {"annotations": {"touched": "yes"}}}
"""The kubelet looks at a changed pod at once, with the pod's volumes."""
PATIENT = "for i in $(seq 600); do {} && break; sleep 0.1; done"


def mount(name: str, place: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "mountPath": place, **more}


async def shared(cluster: Cluster) -> list[str]:
    """Paths that protectd shares with the zones."""
    root = cluster.node.protectd.run_dir / "volumes"
    zones = [zone.id for zone in await cluster.zones()]
    return [path.name for zone in zones for path in (root / zone / "places").glob("*/*")]


async def until(cluster: Cluster, name: str, condition: str) -> None:
    """Until a condition of the shell holds in a pod."""
    said = await cluster.exec(name, "sh", "-c", f"{PATIENT.format(condition)}; {condition} && echo so")
    assert said.endswith("so\n")


async def test_kubelet_files_are_updated_without_a_shared_path(cluster: Cluster) -> None:
    """All kinds of volumes in one pod; each shows the present files, and parts show the earlier files."""
    await cluster.api.post(MAPS, {"metadata": {"name": "settings"}, "data": {"a": "one", "b": "one"}})
    await cluster.api.post(SECRETS, {"metadata": {"name": "settings"}, "stringData": {"key": "hidden"}})
    await cluster.api.post(ACCOUNTS, {"metadata": {"name": "reader"}})
    projected = {
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
            {"configMap": {"name": "settings", "items": [{"key": "a", "path": "deep/er/a"}]}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ],
        "defaultMode": 0o440,
    }
    labels = {"path": "notes", "fieldRef": {"fieldPath": "metadata.annotations"}}
    volumes = [
        {"name": "map", "configMap": {"name": "settings"}},
        {"name": "hidden", "secret": {"secretName": "settings", "defaultMode": 0o400}},
        {"name": "all", "projected": projected},
        {"name": "pod", "downwardAPI": {"items": [labels]}},
    ]
    mounts = [
        mount("map", "/map"),
        mount("map", "/part", subPath="a"),
        mount("hidden", "/hidden"),
        mount("all", "/all"),
        mount("pod", "/pod"),
    ]
    await cluster.create(
        "files",
        "sh",
        "-c",
        "sleep 1000",
        container={"volumeMounts": mounts},
        volumes=volumes,
        serviceAccountName="reader",
        automountServiceAccountToken=False,
        securityContext={"fsGroup": 4242},
        hostAliases=[{"ip": "192.0.2.7", "hostnames": ["seven.test"]}],
    )
    await cluster.started("files")
    show = "cat /map/a /map/b /part /hidden/key /all/deep/er/a /all/name; grep -c . /all/token"
    assert await cluster.exec("files", "sh", "-c", show) == "oneoneonehiddenonefiles1\n"
    owners = "stat -Lc '%a %g' /hidden/key /all/name; grep seven /etc/hosts"
    assert (await cluster.exec("files", "sh", "-c", owners)).split() == [
        "440", "4242", "440", "4242", "192.0.2.7", "seven.test",
    ]  # fmt: skip
    assert await shared(cluster) == []
    await cluster.api.patch(f"{MAPS}/settings", {"data": {"a": "two", "b": None, "c": "new"}})
    await cluster.api.patch("/api/v1/namespaces/default/pods/files", TOUCH)
    await until(cluster, "files", "grep -q two /map/a")
    assert await cluster.exec("files", "sh", "-c", "ls /map; cat /map/c /part") == "a\nc\nnewone"
    await until(cluster, "files", "grep -q touched /pod/notes")
    await until(cluster, "files", "grep -q two /all/deep/er/a")
    assert await shared(cluster) == []


async def test_an_empty_dir_for_all_containers(cluster: Cluster) -> None:
    """Other containers find an init container's files; a missing part is made."""
    first = {
        "name": "first",
        "image": IMAGE,
        "command": ["sh", "-c", "echo kept > /v/file; mkdir /v/part; echo deep > /v/part/x"],
        "volumeMounts": [mount("scratch", "/v")],
    }
    mounts = [
        mount("scratch", "/v"),
        mount("scratch", "/p", subPath="part"),
        mount("scratch", "/n", subPath="n/w"),
    ]
    await cluster.create(
        "scratch",
        "sh",
        "-c",
        "cat /v/file /p/x; touch /n/there; ls /v/n/w; ls -ldn /v | cut -d' ' -f1; stat -c %g /v",
        container={"volumeMounts": mounts},
        initContainers=[first],
        volumes=[{"name": "scratch", "emptyDir": {}}],
        securityContext={"fsGroup": 4242},
    )
    assert (await cluster.ended("scratch"))["phase"] == "Succeeded"
    assert (await cluster.log("scratch")).split() == ["kept", "deep", "there", "drwxrwsrwx", "4242"]


@pytest.mark.parametrize(
    ("place", "script", "message"),
    [
        ("/dev/termination-log", "echo because > /dev/termination-log; exit 4", "because\n"),
        ("/tmp/why", "echo elsewhere > /tmp/why; exit 4", "elsewhere\n"),
        ("/dev/termination-log", "seq 3000 > /dev/termination-log; exit 4", "3000\n"),
        ("/dev/termination-log", "exit 4", ""),
    ],
)
async def test_termination_message_is_returned_within_4096_bytes(
    cluster: Cluster, place: str, script: str, message: str
) -> None:
    await cluster.create("message", "sh", "-c", script, container={"terminationMessagePath": place})
    ended = await cluster.ended("message")
    said = ended.get("message", "")
    assert ended["exitCode"] == 4 and (said == message or said.endswith(f"\n{message}")), said
    assert len(said) == 4096 or len(said) == len(message)


async def test_etc_hosts_of_restarted_containers(cluster: Cluster) -> None:
    await cluster.create(
        "again",
        "sh",
        "-c",
        "grep -c mine /etc/hosts; grep eight /etc/hosts; echo 10.9.9.9 mine >> /etc/hosts; exit 1",
        restartPolicy="OnFailure",
        hostAliases=[{"ip": "192.0.2.8", "hostnames": ["eight.test"]}],
    )
    seen = await cluster.until("again", lambda pod: _restarts(pod) >= 1)
    assert _restarts(seen) >= 1
    assert (await cluster.logged("again", lambda log: "eight" in log)).split()[-2:] == [
        "192.0.2.8",
        "eight.test",
    ]


def _restarts(pod: dict[str, Any]) -> int:
    statuses = pod["status"].get("containerStatuses") or ()
    return sum(one["restartCount"] for one in statuses)
