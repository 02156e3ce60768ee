"""The whole OCI runtime configuration (opencontainers/runtime-spec 1.0.2) of one container."""

from __future__ import annotations

from collections.abc import Iterable

from cri.config import ContainerDefaults
from cri.oci.mounts import MASKED, READONLY, arranged, file_mounts, kernel_mounts
from cri.oci.namespaces import id_mappings, namespaces, sees_zone
from cri.oci.resources import resources
from cri.oci.seccomp_bpf import ANNOTATION
from cri.oci.values import Filter, Json
from xenpod_proto.cri.v1 import runtime_pb2 as cri

FILES = ("hostname", "hosts", "resolv.conf")


def spec(
    container_id: str,
    config: cri.ContainerConfig,
    process: Json,
    defaults: ContainerDefaults,
    seccomp: Filter | None = None,
    target_pid: int = 0,
    mounts: Iterable[Json] = (),
    follows_host: bool = False,
) -> Json:
    """Build the whole configuration.

    ``seccomp``: None for no filter; ``target_pid``: see ``namespaces``; ``mounts``: of volumes, in any order;
    ``follows_host``: later mounts on the host must reach the container.
    """
    security = config.linux.security_context
    options = security.namespace_options
    own_shm = defaults.shm_size if options.ipc == cri.CONTAINER else 0
    linux: dict[str, object] = {
        "namespaces": namespaces(options, target_pid),
        **id_mappings(options),
        "cgroupsPath": f"/workloads/{container_id}",
        "resources": resources(config.linux.resources, defaults.pids_limit, privileged=security.privileged),
        "maskedPaths": _paths(config, list(security.masked_paths), MASKED),
        "readonlyPaths": _paths(config, list(security.readonly_paths), READONLY),
    }
    if seccomp is not None:
        linux["seccomp"] = seccomp.profile
    if follows_host:
        linux["rootfsPropagation"] = "rslave"
    usual = [
        *kernel_mounts(
            own_shm,
            privileged=security.privileged,
            zone_proc=sees_zone(options, target_pid),
            # A pod's user namespace owns nothing in the zone's /dev: devices do not open, mount points fail.
            zone_dev=security.privileged and not options.userns_options.uids,
        ),
        *file_mounts(container_id, FILES, readonly=security.readonly_rootfs),
    ]
    return {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": "rootfs", "readonly": security.readonly_rootfs},
        "mounts": arranged(usual, mounts),
        "linux": linux,
        "annotations": {ANNOTATION: seccomp.program} if seccomp is not None and seccomp.program else {},
    }


def _paths(config: cri.ContainerConfig, asked: list[str], default: tuple[str, ...]) -> list[str]:
    """The masked or read-only paths: CRI's list, even if empty (Unmasked), if a security context exists."""
    if config.linux.security_context.privileged:
        return []
    return asked if config.linux.HasField("security_context") else list(default)
