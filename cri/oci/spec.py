"""The whole OCI runtime configuration (opencontainers/runtime-spec 1.0.2) of one container."""

from __future__ import annotations

from cri.config import ContainerDefaults
from cri.oci.mounts import MASKED, READONLY, file_mounts, kernel_mounts
from cri.oci.resources import resources
from cri.oci.values import Json
from xenpod_proto.cri.v1 import runtime_pb2 as cri

FILES = ("hostname", "hosts", "resolv.conf")


def spec(container_id: str, config: cri.ContainerConfig, process: Json, defaults: ContainerDefaults) -> Json:
    """No network, UTS or IPC namespace: those are the zone's own, which is the pod's."""
    security = config.linux.security_context
    return {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": "rootfs", "readonly": security.readonly_rootfs},
        "mounts": [
            *kernel_mounts(defaults.shm_size),
            *file_mounts(container_id, FILES, readonly=security.readonly_rootfs),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in _namespaces(config)],
            "cgroupsPath": f"/workloads/{container_id}",
            "resources": resources(config.linux.resources, defaults.pids_limit),
            "maskedPaths": _paths(config, list(security.masked_paths), MASKED),
            "readonlyPaths": _paths(config, list(security.readonly_paths), READONLY),
        },
    }


def _namespaces(config: cri.ContainerConfig) -> list[str]:
    """POD, CRI's default, means the zone's own processes; the kubelet asks for CONTAINER unless a pod says
    shareProcessNamespace."""
    shared = config.linux.security_context.namespace_options.pid == cri.POD
    return ["mount", "cgroup"] if shared else ["mount", "cgroup", "pid"]


def _paths(config: cri.ContainerConfig, asked: list[str], default: tuple[str, ...]) -> list[str]:
    """With a security context CRI's list, an empty one too: that is procMount: Unmasked."""
    return asked if config.linux.HasField("security_context") else list(default)
