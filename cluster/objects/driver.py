"""The objects of the DRA driver ``xenpod-dra``: a DaemonSet, its configuration, its account and rights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster.objects.claims.templates import DRIVER
from cluster.objects.classes import Object
from cluster.objects.daemonset import NAMESPACE, NODE_OF_CALLER, NodeProgram, folder, of_pod, pull_policy
from cluster.objects.platforms import NodePlatform

NAME = "xenpod-dra"

_DRA = "resource.k8s.io"
_CONFIG_DIR = "/etc/xenpod"
_PROTECT_DIR = "/run/protect"
_KUBELET_DIR = "/var/lib/kubelet"
_FOLDERS = {"plugins": f"{_KUBELET_DIR}/plugins", "registry": f"{_KUBELET_DIR}/plugins_registry"}
# As MemoryMax of packaging/systemd/xenpod-dra.service.
_RESOURCES: Object = {"requests": {"cpu": "10m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}}


_DEVICES = {"devices": f"{_KUBELET_DIR}/device-plugins"}


def driver(platforms: Sequence[NodePlatform], image: str, namespace: str = NAMESPACE) -> list[Object]:
    """The service account, its rights and their bounds, and the DaemonSet for the platforms' nodes."""
    program = NodeProgram(NAME, namespace)
    rules = [
        _rule("", "nodes", "get"),
        _rule(_DRA, "resourceclaims", "get"),
        _rule(_DRA, "resourceslices", "get", "create", "update"),
        _rule("events.k8s.io", "events", "create"),
    ]
    # The next driver serves before the last driver ends: no pod waits for a driver.
    strategy = {"maxSurge": "10%", "maxUnavailable": 0}
    return [
        *program.account(rules),
        *_bounds(program),
        _configuration(program, "", _FOLDERS),
        program.daemon_set(strategy, _pod(program, platforms, image, _FOLDERS)),
    ]


def counting(platforms: Sequence[NodePlatform], image: str, namespace: str, granule: int) -> list[Object]:
    """The driver for clusters without claims, with no rights; ``granule``: in MiB."""
    program = NodeProgram(NAME, namespace)
    table = f'[granules]\nsize = "{granule}MiB"\n'
    # The socket has a fixed name: the last driver ends before the next driver serves.
    strategy = {"maxUnavailable": "10%"}
    pod = {**_pod(program, platforms, image, _DEVICES), "automountServiceAccountToken": False}
    return [
        program.service_account,
        _configuration(program, table, _DEVICES),
        program.daemon_set(strategy, pod),
    ]


def _configuration(program: NodeProgram, table: str, folders: Mapping[str, str]) -> Object:
    keys = "".join(f'{name}_dir = "{path}"\n' for name, path in folders.items())
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": program.metadata,
        "data": {"dra.toml": f"{table}{keys}"},
    }


def _bounds(program: NodeProgram) -> list[Object]:
    """The driver may write only its own slices, and only for its own node."""
    written = {
        "apiGroups": [_DRA],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["resourceslices"],
    }
    may = (
        (
            f'{NODE_OF_CALLER} == [object.spec.?nodeName.orValue("")]',
            f"{NAME} writes only slices of the node that it runs on",
        ),
        (f'object.spec.driver == "{DRIVER}"', f"{NAME} writes only its own slices"),
    )
    return program.bounds("is-the-driver", written, may)


def _pod(
    program: NodeProgram, platforms: Sequence[NodePlatform], image: str, needed: Mapping[str, str]
) -> Object:
    container = {
        "name": "driver",
        "image": image,
        "imagePullPolicy": pull_policy(image),
        "command": [program.path],
        "args": ["--config", f"{_CONFIG_DIR}/dra.toml"],
        "env": [of_pod("NODE_NAME", "spec.nodeName"), of_pod("POD_UID", "metadata.uid")],
        "resources": _RESOURCES,
    }
    mounts: list[Object] = [
        {"name": "config", "mountPath": _CONFIG_DIR, "readOnly": True},
        {"name": "protect", "mountPath": _PROTECT_DIR, "readOnly": True},
        *({"name": name, "mountPath": path} for name, path in needed.items()),
    ]
    config = {"name": "config", "configMap": {"name": NAME}}
    folders = {"protect": _PROTECT_DIR, **needed}
    return program.pod(
        platforms, container, mounts, config, *(folder(name, path) for name, path in folders.items())
    )


def _rule(group: str, resource: str, *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
