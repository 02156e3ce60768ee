"""The labeller's manifests: no needless right, and the program's bounds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.labeller import labels
from cluster.objects import platforms
from cluster.objects.labeller import OWN_LABELS, labeller
from daemonkit.faults import Invalid
from tests.support.cluster.api import Object

TWO = """
[platforms.metal]
taints = ["example.com/a=b:NoSchedule", "example.com/c:NoExecute"]
[platforms.cloud]
taints = ["example.com/a=b:NoSchedule"]
labels = {"example.com/pool" = "cloud"}
"""


def objects(folder: Path, text: str = TWO) -> dict[str, Object]:
    """The objects by kind."""
    path = folder / "platforms.toml"
    path.write_text(text)
    return {one["kind"]: one for one in labeller(platforms.of_file(path), "registry.example/x:1", "zones")}


def pod(folder: Path) -> Object:
    spec: Object = objects(folder)["DaemonSet"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize(
    "name",
    [
        *("toolstack", "security-boundary", "user-namespaces", "xen-version", "xen-version.major"),
        *("xen-version.minor", "handler.fast", "mode.pvh", "can.hap", "can.a.b"),
        *("zones", "platform", "pool", "runtime-class", "can", "can.", "toolstack.x", "xen-version.patch"),
        *("handlers.fast", "x.handler.fast", "", "Toolstack"),
    ],
)
@pytest.mark.parametrize("prefix", ["xenpod.dev/", "xenpodxdev/", "example.com/xenpod.dev/", ""])
def test_the_policy_and_the_program_agree_on_the_owner_of_a_label(prefix: str, name: str) -> None:
    assert bool(re.search(OWN_LABELS, prefix + name)) == labels.is_ours(prefix + name)


def test_the_labeller_may_read_and_patch_nodes_and_nothing_else(tmp_path: Path) -> None:
    found = objects(tmp_path)
    assert found["ClusterRole"]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    ]
    [subject] = found["ClusterRoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "xenpod-labels", "namespace": "zones"}
    [condition] = found["ValidatingAdmissionPolicy"]["spec"]["matchConditions"]
    assert '"system:serviceaccount:zones:xenpod-labels"' in condition["expression"]
    assert found["ValidatingAdmissionPolicyBinding"]["spec"]["validationActions"] == ["Deny"]


def test_its_container_can_do_nothing_but_run(tmp_path: Path) -> None:
    spec = pod(tmp_path)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert [volume["hostPath"]["path"] for volume in spec["volumes"]] == ["/run/xenpod"]


def test_the_labeller_is_an_add_on_like_others(tmp_path: Path) -> None:
    spec = pod(tmp_path)
    assert spec["priorityClassName"] == "system-node-critical"
    assert {"key": "CriticalAddonsOnly", "operator": "Exists"} in spec["tolerations"]
    [preferred] = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchExpressions"] == [
        {"key": "xenpod.dev/pool", "operator": "In", "values": ["addons"]}
    ]


def test_the_labeller_runs_on_every_platform_with_any_taints(tmp_path: Path) -> None:
    spec = pod(tmp_path)
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
        for key, value in (("xenpod.dev/platform", "metal"), ("example.com/pool", "cloud"))
    ]
    assert spec["tolerations"][1:] == [
        {"key": "example.com/a", "operator": "Equal", "value": "b", "effect": "NoSchedule"},
        {"key": "example.com/c", "operator": "Exists", "effect": "NoExecute"},
    ]


def test_platforms_with_sockets_in_different_places_are_refused(tmp_path: Path) -> None:
    elsewhere = TWO + 'cri_socket = "/run/zones/cri.sock"\n'
    with pytest.raises(Invalid, match="socket is not in the same place everywhere"):
        objects(tmp_path, elsewhere)


def test_the_folder_of_the_socket_is_mounted_at_any_path(tmp_path: Path) -> None:
    found = objects(tmp_path, '[platforms.a]\ncri_socket = "/srv/zones/cri.sock"\n')
    spec = found["DaemonSet"]["spec"]["template"]["spec"]
    assert spec["volumes"] == [{"name": "run", "hostPath": {"path": "/srv/zones", "type": "Directory"}}]
    assert spec["containers"][0]["args"] == ["node", "--cri-socket", "/srv/zones/cri.sock"]
