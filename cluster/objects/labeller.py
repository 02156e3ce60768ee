"""The objects of the node labeller ``xenpod-labels``: a DaemonSet, its account, and its rights."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from cluster.objects.classes import Object
from cluster.objects.daemonset import NAMESPACE, NODE_OF_CALLER, NodeProgram, folder, of_pod, pull_policy
from cluster.objects.platforms import NodePlatform
from daemonkit.faults import Invalid

NAME = "xenpod-labels"

OWN_LABELS = (
    "^xenpod[.]dev/(toolstack|security-boundary|user-namespaces|xen-version([.](major|minor))?"
    "|(handler|mode|can)[.].+)$"
)
"""Regular expression of the labels that the labeller may change: ``cluster.labeller.labels.is_ours``."""

# The labeller takes 90 MiB after its first request to the API server, and hardly any CPU time.
_RESOURCES: Object = {"requests": {"cpu": "10m", "memory": "96Mi"}, "limits": {"memory": "192Mi"}}


def image_name() -> str:
    """The name of the image of deploy/image/Containerfile on the machine that built the image."""
    return f"localhost/xenpod:{version('xenpod')}"


def labeller(platforms: Sequence[NodePlatform], image: str, namespace: str = NAMESPACE) -> list[Object]:
    """The service account, its rights and their bounds, and the DaemonSet for the platforms' nodes.

    Invalid: platforms whose nodes have xenpod-cri's socket in different places.
    """
    program = NodeProgram(NAME, namespace)
    return [
        *program.account([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]),
        *_bounds(program),
        program.daemon_set({"maxUnavailable": "10%"}, _pod(program, platforms, image)),
    ]


def _bounds(program: NodeProgram) -> list[Object]:
    """The labeller may change only its own labels, and only on its own node."""
    node = f"{NODE_OF_CALLER} == [request.name]"
    kept = "key.matches(variables.own) || variables.before[?key] == optional.of(variables.after[key])"
    # With an owner that does not exist the node would be collected; a finalizer would keep the node for ever.
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
    updates = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
    variables = [
        {"name": "before", "expression": _labels_of("oldObject")},
        {"name": "after", "expression": _labels_of("object")},
        {"name": "own", "expression": f'"{OWN_LABELS}"'},
    ]
    return program.bounds("is-the-labeller", updates, may, variables=variables)


def _pod(program: NodeProgram, platforms: Sequence[NodePlatform], image: str) -> Object:
    socket = socket_of(platforms)
    run_dir = str(socket.parent)
    container = {
        "name": "labels",
        "image": image,
        "imagePullPolicy": pull_policy(image),
        "command": [program.path],
        "args": ["node", "--cri-socket", str(socket)],
        "env": [of_pod("NODE_NAME", "spec.nodeName")],
        "resources": _RESOURCES,
    }
    mounts = [{"name": "run", "mountPath": run_dir, "readOnly": True}]
    return program.pod(platforms, container, mounts, folder("run", run_dir))


def socket_of(platforms: Sequence[NodePlatform]) -> Path:
    """The path of xenpod-cri's socket. Invalid: the path differs between the platforms."""
    first, *others = {one.cri_socket for one in platforms}
    if others:
        cause = "xenpod-cri's socket is not in the same place everywhere"
        hint = "make one for each of them with --platform, and give the copies names of their own"
        raise Invalid("generate labeller", f"{len(platforms)} platforms", cause, hint)
    return first


def _labels_of(name: str) -> str:
    return f"has({name}.metadata.labels) ? {name}.metadata.labels : {{}}"
