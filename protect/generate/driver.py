"""The objects of the DRA driver ``xenpod-dra``: a DaemonSet, its configuration, its account and rights."""

from __future__ import annotations

from collections.abc import Sequence

from protect.generate.claims.templates import DRIVER
from protect.generate.classes import Object, toleration
from protect.generate.labeller import NAMESPACE, affinity
from protect.generate.manifests.critical import TAINT
from protect.generate.platforms import NodePlatform
from protect.generate.policies import policy_object

NAME = "xenpod-dra"

_PROGRAM = f"/opt/xenpod/bin/{NAME}"  # deploy/image/Containerfile
_LABELS = {"app.kubernetes.io/name": NAME}
_RBAC = "rbac.authorization.k8s.io"
_DRA = "resource.k8s.io"
_CONFIG_DIR = "/etc/xenpod"
_PROTECT_DIR = "/run/protect"
_KUBELET_DIR = "/var/lib/kubelet"
_FOLDERS = {"plugins": f"{_KUBELET_DIR}/plugins", "registry": f"{_KUBELET_DIR}/plugins_registry"}
# As MemoryMax of packaging/systemd/xenpod-dra.service.
_RESOURCES: Object = {"requests": {"cpu": "10m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}}


def driver(platforms: Sequence[NodePlatform], image: str, namespace: str = NAMESPACE) -> list[Object]:
    """The service account, its rights and their bounds, and the DaemonSet for the platforms' nodes."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": _own(namespace),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAME},
            "rules": [
                _rule("", "nodes", "get"),
                _rule(_DRA, "resourceclaims", "get"),
                _rule(_DRA, "resourceslices", "get", "create", "update"),
                _rule("events.k8s.io", "events", "create"),
            ],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
        },
        *_bounds(namespace),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _own(namespace),
            "data": {"dra.toml": "".join(f'{name}_dir = "{path}"\n' for name, path in _FOLDERS.items())},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": _own(namespace),
            "spec": {
                "selector": {"matchLabels": dict(_LABELS)},
                # The next one serves before this one ends: no pod waits for a driver.
                "updateStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0},
                },
                "template": {"metadata": {"labels": dict(_LABELS)}, "spec": _pod(platforms, image)},
            },
        },
    ]


def _bounds(namespace: str) -> list[Object]:
    """A ValidatingAdmissionPolicy and its binding: it may write only its own slices of its own node.

    RBAC can express neither.  The API server knows the node from the token, which is bound to the pod
    (KEP-4193).
    """
    written = {
        "apiGroups": [_DRA],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["resourceslices"],
    }
    nodes = 'request.userInfo.?extra[?"authentication.kubernetes.io/node-name"].orValue([])'
    may = (
        (
            f'{nodes} == [object.spec.?nodeName.orValue("")]',
            f"{NAME} writes only slices of the node that it runs on",
        ),
        (f'object.spec.driver == "{DRIVER}"', f"{NAME} writes only its own slices"),
    )
    account = f"system:serviceaccount:{namespace}:{NAME}"
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [written]},
        "matchConditions": [
            {"name": "is-the-driver", "expression": f'request.userInfo.username == "{account}"'}
        ],
        "validations": [
            {"expression": expression, "message": message, "reason": "Forbidden"}
            for expression, message in may
        ],
    }
    binding = {"policyName": NAME, "validationActions": ["Deny"]}
    return [
        policy_object("v1", "ValidatingAdmissionPolicy", NAME, spec),
        policy_object("v1", "ValidatingAdmissionPolicyBinding", NAME, binding),
    ]


def _pod(platforms: Sequence[NodePlatform], image: str) -> Object:
    taints = dict.fromkeys(taint for one in platforms for taint in one.taints)
    mounts = [
        {"name": "config", "mountPath": _CONFIG_DIR, "readOnly": True},
        {"name": "protect", "mountPath": _PROTECT_DIR, "readOnly": True},
        *({"name": name, "mountPath": path} for name, path in _FOLDERS.items()),
    ]
    folders = {"protect": _PROTECT_DIR, **_FOLDERS}
    return {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "priorityClassName": "system-node-critical",
        "affinity": {"nodeAffinity": affinity(platforms)},
        "tolerations": [
            {"key": TAINT, "operator": "Exists"},
            *(toleration(taint) for taint in taints),
        ],
        # protectd's socket and the kubelet's folders are root's.
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "driver",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": [_PROGRAM],
                "args": ["--config", f"{_CONFIG_DIR}/dra.toml"],
                "env": [_of_pod("NODE_NAME", "spec.nodeName"), _of_pod("POD_UID", "metadata.uid")],
                "resources": _RESOURCES,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "privileged": False,
                    "readOnlyRootFilesystem": True,
                },
                "volumeMounts": mounts,
            }
        ],
        # Folders, since whatever restarts makes another socket.
        "volumes": [
            {"name": "config", "configMap": {"name": NAME}},
            *(
                {"name": name, "hostPath": {"path": path, "type": "Directory"}}
                for name, path in folders.items()
            ),
        ],
    }


def _of_pod(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _rule(group: str, resource: str, *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


def _own(namespace: str) -> Object:
    return {"name": NAME, "namespace": namespace, "labels": dict(_LABELS)}
