"""CreateContainer: this daemon writes the OCI configuration, protectd prepares the container in its zone."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from cri.checks import container as request
from cri.checks import devices
from cri.checks.fields import CREATE
from cri.checks.mounts import is_image
from cri.checks.storage import empty_dirs, writable_layers
from cri.checks.userns import check_mapped, pod_userns
from cri.config import HandlerConfig, HostNamespaces
from cri.container import kubelet_paths
from cri.container.host_files import host_resolv, make_log_directory, seccomp_profile
from cri.container.kubelet_paths import Source
from cri.container.remove import finish_leftover, undo
from cri.container.shares import settle, settle_or_log
from cri.container.signals import stop_signal
from cri.container.volumes import plan, set_image_ids
from cri.oci.capabilities import grantable
from cri.oci.files import pod_files
from cri.oci.process import bounding, process
from cri.oci.seccomp import local_profile, seccomp
from cri.oci.spec import spec
from cri.oci.user import User, user
from cri.oci.values import RootImage
from cri.runtime import Runtime, now_ns
from cri.state.container import Container, ContainerImage, ContainerPhase
from cri.state.names import container_name, new_id
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.zones.selinux import refuse_labels
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Invalid, Refused
from daemonkit.logs import fields
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

log = logging.getLogger(__name__)


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


async def create(runtime: Runtime, asked: cri.CreateContainerRequest) -> str:
    """Create a container; returns its id.  After a failure, reconciliation can remove every remainder."""
    sandbox_id = runtime.sandboxes.find(asked.pod_sandbox_id).id
    await runtime.images.mend(_image_names(asked.config))
    async with runtime.locks.hold(sandbox_id):
        sandbox = _ready(runtime, sandbox_id)
        handler = runtime.config.handlers.get(sandbox.handler, HandlerConfig())
        host_is_zone = handler.host_namespaces is HostNamespaces.ZONE
        request.check(asked.config, sandbox.config, host_is_zone=host_is_zone)
        if not sandbox.kernel:
            options = asked.config.linux.security_context.selinux_options
            await refuse_labels(runtime.host, CREATE, asked.config.metadata.name, options)
        image = runtime.images.resolve(asked.config.image.image)
        volume_images = _volume_images(runtime, asked.config.mounts)
        pid = await _target_pid(runtime, sandbox_id, asked.config.linux.security_context.namespace_options)
        files = await _host_files(runtime, sandbox, asked.config)
        plan = _plan(runtime, sandbox, asked.config, image, volume_images, pid, files)
        await _make(runtime, plan)
    checkpoint("create-container.created")
    log.info(
        "container created", extra=fields(container=plan.container.id, sandbox=sandbox_id, image=image.id)
    )
    return plan.container.id


async def _make(runtime: Runtime, plan: ContainerPlan) -> None:
    container = plan.container
    name = container_name(container.config.metadata, container.sandbox_id)
    await finish_leftover(runtime, name)
    namespace = runtime.sandboxes.get(container.sandbox_id).config.metadata.namespace
    runtime.capacity.check_container(CREATE, namespace, container.config)
    async with AsyncExitStack() as steps:
        steps.push_async_callback(settle_or_log, runtime, container.sandbox_id)
        runtime.container_names.reserve(name, container.id)
        steps.push_async_callback(undo, runtime, container.id)
        await runtime.containers.add(container)
        for image_id in container.images:
            runtime.images.hold(image_id, container.id)
        checkpoint("create-container.recorded")
        await settle(runtime, container.sandbox_id)
        await runtime.zones.create_workload(plan.workload)
        checkpoint("create-container.prepared")
        _ready(runtime, container.sandbox_id)
        await runtime.containers.put(replace(container, phase=ContainerPhase.CREATED))
        steps.pop_all()


def _ready(runtime: Runtime, sandbox_id: str) -> Sandbox:
    sandbox = runtime.sandboxes.get(sandbox_id)
    if sandbox.phase is not SandboxPhase.READY:
        cause = f"its pod sandbox {sandbox_id} is {sandbox.phase.value}"
        raise Refused(CREATE, "", f"{cause}: {sandbox.death_reason}" if sandbox.death_reason else cause)
    return sandbox


def _plan(
    runtime: Runtime,
    sandbox: Sandbox,
    config: cri.ContainerConfig,
    image: RootImage,
    volume_images: Sequence[RootImage],
    target: int,
    host: HostInputs,
) -> ContainerPlan:
    """Decide everything before the first side effect.  Only the log's directory exists already."""
    container_id = new_id()
    handler = runtime.config.handlers.get(sandbox.handler, HandlerConfig())
    defaults = runtime.config.container
    who = _user(config, image)
    first = process(config, image, who, sandbox.hostname, defaults.nofile, grantable())
    filters = seccomp(config.linux.security_context, bounding(first), local=host.seccomp)
    notes = sandbox.config.annotations
    volumes = plan(
        container_id, config.mounts, volume_images, host.in_zone, handler.empty_dir_size, empty_dirs(notes)
    )
    oci = spec(container_id, config, first, defaults, filters, target, volumes.mounts, volumes.follows_host)
    files = pod_files(sandbox.config, sandbox.hostname, sandbox.attachment.addresses, host.resolv)
    container = Container(
        id=container_id,
        sandbox_id=sandbox.id,
        phase=ContainerPhase.CREATING,
        created_ns=now_ns(),
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
        devices=devices.of_container(
            config, devices.of_pod(sandbox.config.annotations, handler), who.uid, who.gid
        ),
        writable_bytes=writable_layers(notes).get(config.metadata.name, 0),
    )
    return ContainerPlan(container, workload)


def _user(config: cri.ContainerConfig, image: RootImage) -> User:
    security, name = config.linux.security_context, config.metadata.name
    who = user(security, image)
    check_mapped(
        CREATE, name, (who.uid, who.gid, *who.groups), pod_userns(CREATE, name, security.namespace_options)
    )
    return who


async def _target_pid(runtime: Runtime, sandbox_id: str, options: cri.NamespaceOption) -> int:
    """With mode TARGET, the pid in the zone of a process of the target container; otherwise 0.

    0 means the zone's own process namespace.  Missing: no such target; Invalid: a target of another pod;
    Refused: a target that does not run.
    """
    if options.pid != cri.TARGET:
        return 0
    target = runtime.containers.find(options.target_id)
    if target.sandbox_id != sandbox_id:
        raise Invalid(CREATE, f"target container {target.id}", "it is of another pod")
    if target.phase is not ContainerPhase.RUNNING:
        raise Refused(CREATE, f"target container {target.id}", f"it is {target.phase.value}")
    if target.config.linux.security_context.namespace_options.pid in (cri.POD, cri.NODE):
        return 0
    pid = (await runtime.zones.get_workload(target.id)).pid
    if pid < 2:
        raise Refused(CREATE, f"target container {target.id}", "it has ended")
    return pid


def _named(
    config: cri.ContainerConfig, image: RootImage, volume_images: Sequence[RootImage]
) -> cri.ContainerConfig:
    """The config for ContainerStatus: with the image's name (the kubelet gives an id), digests of volumes."""
    named = cri.ContainerConfig()
    named.CopyFrom(config)
    named.image.image = image.name
    set_image_ids(named.mounts, volume_images)
    return named


def _image_names(config: cri.ContainerConfig) -> tuple[str, ...]:
    return (config.image.image, *(mount.image.image for mount in config.mounts if is_image(mount)))


def _volume_images(runtime: Runtime, mounts: Iterable[cri.Mount]) -> tuple[RootImage, ...]:
    """The images among checked mounts; Missing if the store lacks an image."""
    return tuple(runtime.images.resolve(mount.image.image) for mount in mounts if is_image(mount))


async def _host_files(runtime: Runtime, sandbox: Sandbox, config: cri.ContainerConfig) -> HostInputs:
    pod, paths = sandbox.config, runtime.paths
    profile = await seccomp_profile(paths, pod.metadata, _local_profile(config))
    resolv = await host_resolv(paths, pod)
    log_path = _log_path(sandbox, config)
    await make_log_directory(paths, pod.metadata, str(Path(log_path).parent) if log_path else "")
    host_paths = [mount.host_path for mount in config.mounts]
    in_zone = await kubelet_paths.look(sandbox.id, pod.metadata.uid, host_paths, sandbox.in_zone)
    return HostInputs(profile, resolv, log_path, in_zone)


def _local_profile(config: cri.ContainerConfig) -> str:
    """The path of the container's Localhost seccomp profile; "" for other profiles."""
    security = config.linux.security_context
    return "" if security.privileged else local_profile(security)


def _log_path(sandbox: Sandbox, config: cri.ContainerConfig) -> str:
    """The log's path; "" (no log, as in CRI) if either part is missing."""
    if not sandbox.config.log_directory or not config.log_path:
        return ""
    return str(Path(sandbox.config.log_directory) / config.log_path)
