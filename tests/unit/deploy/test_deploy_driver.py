"""The driver's manifests give only the needed rights, and valid arguments."""

from __future__ import annotations

import tomllib

import pytest

from cluster.dra.config import DraConfig
from cluster.objects.driver import driver
from cluster.objects.platforms import NodeFile
from daemonkit.config import parse
from tests.support.cluster.api import Object

PLATFORM = NodeFile().platform(["xenpod"])


@pytest.fixture
def objects() -> dict[str, Object]:
    return {one["kind"]: one for one in driver([PLATFORM], "registry.example/x:1", "zones")}


@pytest.fixture
def pod(objects: dict[str, Object]) -> Object:
    spec: Object = objects["DaemonSet"]["spec"]["template"]["spec"]
    return spec


def test_the_driver_reads_nodes_and_claims_and_writes_slices_and_events(objects: dict[str, Object]) -> None:
    rules = [(one["resources"], one["verbs"]) for one in objects["ClusterRole"]["rules"]]
    assert rules == [
        (["nodes"], ["get"]),
        (["resourceclaims"], ["get"]),
        (["resourceslices"], ["get", "create", "update"]),
        (["events"], ["create"]),
    ]
    [subject] = objects["ClusterRoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "xenpod-dra", "namespace": "zones"}
    [condition] = objects["ValidatingAdmissionPolicy"]["spec"]["matchConditions"]
    assert '"system:serviceaccount:zones:xenpod-dra"' in condition["expression"]


def test_its_container_can_do_nothing_but_run(pod: Object) -> None:
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert [one["name"] for one in container["volumeMounts"] if not one.get("readOnly")] == [
        "plugins",
        "registry",
    ]


def test_the_program_finds_the_parts_of_its_pod(
    objects: dict[str, Object], pod: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders at the kubelet's paths, and the names of node and instance."""
    [container] = pod["containers"]
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["valueFrom"]["fieldRef"]["fieldPath"])
    config = parse(DraConfig, tomllib.loads(objects["ConfigMap"]["data"]["dra.toml"]))
    assert config.node_name == "spec.nodeName"
    assert config.plugin_socket.name == "dra-metadata.uid.sock"
    assert {str(config.plugins_dir), str(config.registry_dir), str(config.protect_socket.parent)} <= mounts
    host = {one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    assert host == mounts - {"/etc/xenpod"}
    assert container["args"] == ["--config", "/etc/xenpod/dra.toml"]


def test_the_next_instance_serves_before_the_last_instance_ends(objects: dict[str, Object]) -> None:
    update = objects["DaemonSet"]["spec"]["updateStrategy"]
    assert update["rollingUpdate"] == {"maxSurge": "10%", "maxUnavailable": 0}
