"""Plans a container: checks its request, and writes its OCI configuration."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cri.checks import container as request
from cri.checks import host_devices
from cri.checks.fields import CREATE
from cri.checks.mounts import is_image
from cri.checks.storage import empty_dirs, writable_layers
from cri.checks.userns import check_mapped, pod_userns
from cri.config import CriConfig, HandlerConfig, HostNamespaces
from cri.container import kubelet_paths
from cri.container.anonymous_volumes import anonymous_volumes
from cri.container.host_files import host_resolv, make_log_directory, seccomp_profile
from cri.container.kubelet_paths import Source
from cri.container.signals import stop_signal
from cri.container.volumes import VolumePlan, plan_volumes, set_image_ids
from cri.oci.capabilities import grantable
from cri.oci.oci_process import bounding, process
from cri.oci.pod_files import pod_files
from cri.oci.seccomp import local_profile, seccomp
from cri.oci.spec import spec
from cri.oci.user import User, user
from cri.oci.values import RootImage
from cri.ports import Images
from cri.state.container import Container, ContainerImage, ContainerPhase
from cri.state.names import new_id
from cri.state.records import Records
from cri.state.sandbox import ANONYMOUS_VOLUMES, Sandbox
from cri.zones.client import Zones
from cri.zones.follow import HostInfo
from cri.zones.selinux import refuse_labels
from daemonkit.faults import Invalid, Refused
from daemonkit.host.paths import HostPaths
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """A new container's record, and the request to protectd that prepares it."""

    container: Container
    workload: pb.CreateWorkloadRequest


@dataclass(frozen=True, slots=True)
class HostInputs:
    """A container's inputs from the host's files (see host_files).  The directory of ``log_path`` exists.

    ``in_zone``: mounts by host path that the zone has, or gets as a copy.
    """

    seccomp: bytes
    resolv: bytes
    log_path: str
    in_zone: Mapping[str, Source]


@dataclass(frozen=True, slots=True)
class PlanContainer:
    """Decides everything before the first side effect.  Only the log's directory is made."""

    containers: Records[Container]
    config: CriConfig
    images: Images
    zones: Zones
    host: HostInfo
    paths: HostPaths

    async def plan(self, sandbox: Sandbox, config: cri.ContainerConfig) -> ContainerPlan:
        """Check the request, and read the container's inputs.  Refused, Invalid, Missing: see each step."""
        security = config.linux.security_context
        handler = self.config.handlers.get(sandbox.handler, HandlerConfig())
        host_is_zone = handler.host_namespaces is HostNamespaces.ZONE
        request.check_container(config, sandbox.config, host_is_zone=host_is_zone)
        if not sandbox.kernel:
            await refuse_labels(self.host, CREATE, config.metadata.name, security.selinux_options)
        image = self.images.resolve(config.image.image)
        volume_images = self._volume_images(config.mounts)
        pid = await self._target_pid(sandbox.id, security.namespace_options)
        files = await self._host_files(sandbox, config)
        return self._plan(sandbox, config, image, volume_images, pid, files)

    def _plan(
        self,
        sandbox: Sandbox,
        config: cri.ContainerConfig,
        image: RootImage,
        volume_images: Sequence[RootImage],
        target: int,
        host: HostInputs,
    ) -> ContainerPlan:
        container_id = new_id()
        handler = self.config.handlers.get(sandbox.handler, HandlerConfig())
        defaults = self.config.container
        who = _user(config, image)
        first = process(config, image, who, sandbox.hostname, defaults.nofile, grantable())
        filters = seccomp(config.linux.security_context, bounding(first), local=host.seccomp)
        volumes = self._volumes(container_id, sandbox, config, image, volume_images, host.in_zone)
        oci = spec(
            container_id, config, first, defaults, filters, target, volumes.mounts, volumes.follows_host
        )
        files = pod_files(sandbox.config, sandbox.hostname, sandbox.attachment.addresses, host.resolv)
        container = Container(
            id=container_id,
            sandbox_id=sandbox.id,
            phase=ContainerPhase.CREATING,
            created_ns=time.time_ns(),
            config=_named(config, image, volume_images),
            image=ContainerImage(image.id, image.reference),
            log_path=host.log_path,
            process=json.dumps(first),
            stop_signal=stop_signal(config.stop_signal, image.stop_signal),
            volume_images=tuple(dict.fromkeys(found.id for found in volume_images)),
        )
        workload = pb.CreateWorkloadRequest(
            zone_id=sandbox.id,
            id=container_id,
            oci_config=json.dumps(oci).encode(),
            filesystems=[pb.Filesystem(path=path, type=image.type) for path in image.filesystems],
            tty=config.tty,
            stdin=config.stdin,
            stdin_once=config.stdin_once,
            log_path=container.log_path,
            files=[pb.File(name=name, mode=0o644, content=content) for name, content in files.items()],
            volumes=volumes.shared,
            image_volumes=volumes.images,
            memory_volumes=volumes.memory,
            file_volumes=volumes.files,
            anonymous_volumes=volumes.anonymous,
            devices=host_devices.of_container(
                config, host_devices.of_pod(sandbox.config.annotations, handler), who.uid, who.gid
            ),
            writable_bytes=writable_layers(sandbox.config.annotations).get(config.metadata.name, 0),
        )
        return ContainerPlan(container, workload)

    def _volumes(
        self,
        container_id: str,
        sandbox: Sandbox,
        config: cri.ContainerConfig,
        image: RootImage,
        volume_images: Sequence[RootImage],
        in_zone: Mapping[str, Source],
    ) -> VolumePlan:
        handler = self.config.handlers.get(sandbox.handler, HandlerConfig())
        # In a pod of an earlier release the paths of VOLUMEs remain parts of the root.
        has_anonymous = ANONYMOUS_VOLUMES in sandbox.in_zone
        return plan_volumes(
            container_id,
            config.mounts,
            volume_images,
            in_zone,
            handler.empty_dir_size,
            empty_dirs(sandbox.config.annotations),
            anonymous_volumes(image, config.mounts) if has_anonymous else (),
        )

    async def _target_pid(self, sandbox_id: str, options: cri.NamespaceOption) -> int:
        """With mode TARGET, the pid in the zone of a process of the target container; otherwise 0.

        0 means the zone's own process namespace.  Missing: no such target; Invalid: a target of another pod;
        Refused: a target that does not run.
        """
        if options.pid != cri.TARGET:
            return 0
        target = self.containers.find(options.target_id)
        if target.sandbox_id != sandbox_id:
            raise Invalid(CREATE, f"target container {target.id}", "it is of another pod")
        if target.phase is not ContainerPhase.RUNNING:
            raise Refused(CREATE, f"target container {target.id}", f"it is {target.phase.value}")
        if target.config.linux.security_context.namespace_options.pid in (cri.POD, cri.NODE):
            return 0
        pid = (await self.zones.get_workload(target.id)).pid
        if pid < 2:
            raise Refused(CREATE, f"target container {target.id}", "it has ended")
        return pid

    def _volume_images(self, mounts: Iterable[cri.Mount]) -> tuple[RootImage, ...]:
        """The images among checked mounts; Missing if the store lacks an image."""
        return tuple(self.images.resolve(mount.image.image) for mount in mounts if is_image(mount))

    async def _host_files(self, sandbox: Sandbox, config: cri.ContainerConfig) -> HostInputs:
        pod, paths = sandbox.config, self.paths
        profile = await seccomp_profile(paths, pod.metadata, _local_profile(config))
        resolv = await host_resolv(paths, pod)
        log_path = _log_path(sandbox, config)
        await make_log_directory(paths, pod.metadata, str(Path(log_path).parent) if log_path else "")
        host_paths = [mount.host_path for mount in config.mounts]
        in_zone = await kubelet_paths.look_up_sources(
            sandbox.id, pod.metadata.uid, host_paths, sandbox.in_zone
        )
        return HostInputs(profile, resolv, log_path, in_zone)


def _user(config: cri.ContainerConfig, image: RootImage) -> User:
    security, name = config.linux.security_context, config.metadata.name
    who = user(security, image)
    check_mapped(
        CREATE, name, (who.uid, who.gid, *who.groups), pod_userns(CREATE, name, security.namespace_options)
    )
    return who


def _named(
    config: cri.ContainerConfig, image: RootImage, volume_images: Sequence[RootImage]
) -> cri.ContainerConfig:
    """The config for ContainerStatus: with the image's name (the kubelet gives an id), digests of volumes."""
    named = cri.ContainerConfig()
    named.CopyFrom(config)
    named.image.image = image.name
    set_image_ids(named.mounts, volume_images)
    return named


def _local_profile(config: cri.ContainerConfig) -> str:
    """The path of the container's Localhost seccomp profile; "" for other profiles."""
    security = config.linux.security_context
    return "" if security.privileged else local_profile(security)


def _log_path(sandbox: Sandbox, config: cri.ContainerConfig) -> str:
    """The log's path; "" (no log, as in CRI) if either part is missing."""
    if not sandbox.config.log_directory or not config.log_path:
        return ""
    return str(Path(sandbox.config.log_directory) / config.log_path)
