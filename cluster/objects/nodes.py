"""Labels and taints of nodes, as kubectl commands, as flags of the kubelet, and for new machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cluster.objects import syntax
from cluster.objects.classes import Object
from cluster.objects.platforms import NodePlatform
from daemonkit.faults import Invalid

CLUSTER_API = ("v1beta2", "v1beta1")

_TEMPLATE = "xenpod"


def commands(platform: NodePlatform, nodes: Sequence[str] = ()) -> str:
    """kubectl commands for existing nodes; without ``nodes`` for the node in the variable NODE."""
    names = " ".join(nodes) or '"$NODE"'
    lines = [f"kubectl label --overwrite nodes {names} {' '.join(_pairs(platform))}"]
    if platform.taints:
        taints = " ".join(map(str, platform.taints))
        lines.append(f"kubectl taint --overwrite nodes {names} {taints}")
    return "".join(f"{line}\n" for line in lines)


def kubelet_flags(platform: NodePlatform) -> dict[str, str]:
    """Flags of the kubelet, by name, which take effect when it registers its node.

    Invalid: a kubelet may not set one of the labels.
    """
    flags = {"node-labels": ",".join(_kubelet_labels(platform))}
    if platform.taints:
        flags["register-with-taints"] = ",".join(map(str, platform.taints))
    return flags


def flag_lines(platform: NodePlatform) -> str:
    """The flags of the kubelet, a flag on each line."""
    return "".join(f"{flag}\n" for flag in _flags(platform))


def kubeadm_config_template(platform: NodePlatform, version: str) -> Object:
    """Cluster API's KubeadmConfigTemplate for worker nodes; ``version`` is one of ``CLUSTER_API``."""
    labels = {"node-labels": kubelet_flags(platform)["node-labels"]}
    # Arguments are a list since v1beta2.
    listed = [{"name": name, "value": value} for name, value in labels.items()]
    registration: Object = {
        "criSocket": f"unix://{platform.cri_socket}",
        "kubeletExtraArgs": labels if version == "v1beta1" else listed,
    }
    if platform.taints:
        registration["taints"] = [_taint(taint) for taint in platform.taints]
    return {
        "apiVersion": f"bootstrap.cluster.x-k8s.io/{version}",
        "kind": "KubeadmConfigTemplate",
        "metadata": {"name": f"{_TEMPLATE}-{platform.name}" if platform.name else _TEMPLATE},
        "spec": {"template": {"spec": {"joinConfiguration": {"nodeRegistration": registration}}}},
    }


def user_data(platform: NodePlatform) -> Object:
    """cloud-init's user data: the file from which kubeadm's kubelet unit reads extra flags."""
    file = {
        "path": "/etc/default/kubelet",
        "permissions": "0644",
        "content": f"KUBELET_EXTRA_ARGS={' '.join(_flags(platform))}\n",
    }
    return {"write_files": [file]}


def _flags(platform: NodePlatform) -> Iterable[str]:
    return (f"--{name}={value}" for name, value in kubelet_flags(platform).items())


def _kubelet_labels(platform: NodePlatform) -> list[str]:
    for key in platform.labels:
        try:
            syntax.kubelet_label(key)
        except ValueError as error:
            subject = f"platform {platform.name}" if platform.name else "the node"
            hint = "give it with kubectl (protect generate labels), or choose another label"
            raise Invalid("make flags for the kubelet of", subject, str(error), hint) from None
    return _pairs(platform)


def _pairs(platform: NodePlatform) -> list[str]:
    return [f"{key}={value}" for key, value in platform.labels.items()]


def _taint(taint: syntax.Taint) -> Object:
    value = {"value": taint.value} if taint.value else {}
    return {"key": taint.key, **value, "effect": taint.effect}
