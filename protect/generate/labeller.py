"""The objects of the node labeller ``xenpod-labels``: a DaemonSet, its account, and its rights."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from daemonkit.faults import Invalid
from protect.generate.classes import Object, toleration
from protect.generate.manifests.critical import DEFAULT_LABEL, TAINT
from protect.generate.platforms import NodePlatform

NAME = "xenpod-labels"
NAMESPACE = "kube-system"

OWN_LABELS = (
    "^xenpod[.]dev/(toolstack|security-boundary|user-namespaces|xen-version([.](major|minor))?"
    "|(handler|mode|can)[.].+)$"
)
"""Regular expression of the labels that it may change: those of ``labeller.labels.is_ours``."""

_PROGRAM = f"/opt/xenpod/bin/{NAME}"  # deploy/image/Containerfile
_LABELS = {"app.kubernetes.io/name": NAME}
_ADMISSION = "admissionregistration.k8s.io/v1"
_RBAC = "rbac.authorization.k8s.io"
# It takes 90 MiB once it has asked the API server, and hardly any time.
_RESOURCES: Object = {"requests": {"cpu": "10m", "memory": "96Mi"}, "limits": {"memory": "192Mi"}}


def image() -> str:
    """The name of the image of deploy/image/Containerfile on the machine that has built it."""
    return f"localhost/xenpod:{version('xenpod')}"


def labeller(platforms: Sequence[NodePlatform], image: str, namespace: str = NAMESPACE) -> list[Object]:
    """The service account, its rights and their bounds, and the DaemonSet for the platforms' nodes.

    Invalid: platforms whose nodes have xenpod-cri's socket in different places.
    """
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
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}],
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
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": _own(namespace),
            "spec": {
                "selector": {"matchLabels": dict(_LABELS)},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
                "template": {"metadata": {"labels": dict(_LABELS)}, "spec": _pod(platforms, image)},
            },
        },
    ]


def _bounds(namespace: str) -> list[Object]:
    """A ValidatingAdmissionPolicy and its binding: it may change only its own labels on its own node.

    RBAC can express neither.  The API server knows the node from the token, which is bound to the pod
    (KEP-4193).
    """
    node = 'request.userInfo.?extra[?"authentication.kubernetes.io/node-name"].orValue([]) == [request.name]'
    kept = "key.matches(variables.own) || variables.before[?key] == optional.of(variables.after[key])"
    # With an owner that does not exist the node would be collected; a finalizer would keep it for ever.
    rest = " && ".join(
        [
            "object.spec == oldObject.spec",
            *(
                f'object.metadata[?"{name}"] == oldObject.metadata[?"{name}"]'
                for name in ("annotations", "ownerReferences", "finalizers")
            ),
        ]
    )
    may = (
        (node, f"{NAME} changes only the node that it runs on"),
        (f"variables.after.all(key, {kept})", f"{NAME} changes only its own labels"),
        (
            "variables.before.all(key, key.matches(variables.own) || key in variables.after)",
            f"{NAME} removes only its own labels",
        ),
        (rest, f"{NAME} changes only labels"),
    )
    account = f"system:serviceaccount:{namespace}:{NAME}"
    updates = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [updates]},
        "matchConditions": [
            {"name": "is-the-labeller", "expression": f'request.userInfo.username == "{account}"'}
        ],
        "variables": [
            {"name": "before", "expression": _labels_of("oldObject")},
            {"name": "after", "expression": _labels_of("object")},
            {"name": "own", "expression": f'"{OWN_LABELS}"'},
        ],
        "validations": [
            {"expression": expression, "message": message, "reason": "Forbidden"}
            for expression, message in may
        ],
    }
    binding = {"policyName": NAME, "validationActions": ["Deny"]}
    return [
        {"apiVersion": _ADMISSION, "kind": kind, "metadata": {"name": NAME}, "spec": what}
        for kind, what in (("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", binding))
    ]


def _pod(platforms: Sequence[NodePlatform], image: str) -> Object:
    socket = socket_of(platforms)
    run_dir = str(socket.parent)
    taints = dict.fromkeys(taint for one in platforms for taint in one.taints)
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
        # xenpod-cri's socket is root's.
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "labels",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": [_PROGRAM],
                "args": ["node", "--cri-socket", str(socket)],
                "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "resources": _RESOURCES,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "privileged": False,
                    "readOnlyRootFilesystem": True,
                },
                "volumeMounts": [{"name": "run", "mountPath": run_dir, "readOnly": True}],
            }
        ],
        # The folder, since a restarted xenpod-cri makes another socket.
        "volumes": [{"name": "run", "hostPath": {"path": run_dir, "type": "Directory"}}],
    }


def affinity(platforms: Sequence[NodePlatform]) -> Object:
    """The nodes of all platforms, preferably those kept for add-ons."""
    key, _, value = DEFAULT_LABEL.partition("=")
    addons = [{"key": key, "operator": "In", "values": [value]}]
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": key, "operator": "In", "values": [value]}
                        for key, value in sorted(one.labels.items())
                    ]
                }
                for one in platforms
            ]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": {"matchExpressions": addons}}
        ],
    }


def socket_of(platforms: Sequence[NodePlatform]) -> Path:
    """The path of xenpod-cri's socket.  Invalid: it differs between the platforms."""
    first, *others = {one.cri_socket for one in platforms}
    if others:
        cause = "xenpod-cri's socket is not in the same place everywhere"
        hint = "make one for each of them with --platform, and give the copies names of their own"
        raise Invalid("generate labeller", f"{len(platforms)} platforms", cause, hint)
    return first


def _labels_of(name: str) -> str:
    return f"has({name}.metadata.labels) ? {name}.metadata.labels : {{}}"


def _own(namespace: str) -> Object:
    return {"name": NAME, "namespace": namespace, "labels": dict(_LABELS)}
