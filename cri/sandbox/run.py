"""RunPodSandbox: CNI makes the pod's network, protectd boots a zone and connects it to the network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from cri.checks import devices
from cri.checks import sandbox as request
from cri.checks.fields import RUN
from cri.checks.handlers import MODES, unmet
from cri.checks.userns import pod_userns
from cri.config import EmptyDirPlace
from cri.container import host_files
from cri.container.shares import shares_of
from cri.oci.seccomp import local_profile
from cri.runtime import Runtime, now_ns
from cri.sandbox import kernel, sizing
from cri.sandbox.disk_rates import disk_rates
from cri.sandbox.remove import finish_other_attempts, pod_key, undo
from cri.state.attachment import Attachment, BandwidthLimits
from cri.state.names import new_id, sandbox_name
from cri.state.sandbox import EMPTY_DIR, SMALL_FILES, Sandbox, SandboxPhase
from cri.zones.selinux import refuse_labels
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Refused, Unsupported
from daemonkit.logs import fields
from daemonkit.tasks import gather
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

log = logging.getLogger(__name__)


async def run(runtime: Runtime, asked: cri.RunPodSandboxRequest) -> str:
    """Run a pod; returns its id.  After a failure, reconciliation can remove every remainder."""
    sandbox = _plan(runtime, asked)
    await _host_files(runtime, sandbox.config)
    name = sandbox_name(sandbox.config.metadata)
    async with AsyncExitStack() as steps:
        kernel.hold(runtime, sandbox.kernel, sandbox.id)
        steps.callback(_release_kernel, runtime, sandbox.id)
        await _check_kernel(runtime, sandbox)
        await _check_requirements(runtime, sandbox)
        async with runtime.locks.hold(pod_key(sandbox.config.metadata)):
            await finish_other_attempts(runtime, sandbox.config.metadata)
            runtime.capacity.check_pod(RUN, sandbox.config)
            runtime.sandbox_names.reserve(name, sandbox.id)
            steps.push_async_callback(undo, runtime, sandbox.id)
            await runtime.sandboxes.add(sandbox)
        checkpoint("run-pod.recorded")
        namespace = asyncio.Event()
        attached, zone = await gather(
            _attach(runtime, sandbox, namespace.set), _create_zone(runtime, sandbox, namespace.wait)
        )
        checkpoint("run-pod.both-made")
        spoof_check = runtime.config.handlers[sandbox.handler].spoof_check
        await runtime.zones.connect_network(
            sandbox.id, str(attached.netns), attached.interface, spoof_check=spoof_check
        )
        checkpoint("run-pod.connected")
        await _ready(runtime, sandbox.id, zone)
        steps.pop_all()
    checkpoint("run-pod.ready")
    log.info("pod runs", extra=fields(sandbox=sandbox.id, name=name, addresses=",".join(attached.addresses)))
    return sandbox.id


def _plan(runtime: Runtime, asked: cri.RunPodSandboxRequest) -> Sandbox:
    """Check the request and decide on the pod's record, without a side effect."""
    handler = request.handler_name(asked.runtime_handler, runtime.config.handlers)
    chosen = runtime.config.handlers[handler]
    request.check(asked.config, handler, runtime.config.handlers)
    sizing.check(asked.config, runtime.config.zone.memory_overhead, handler, chosen)
    disk_rates(asked.config, handler, chosen)
    image = kernel.resolve(runtime, kernel.chosen(asked.config, chosen, runtime.config.kernels))
    sandbox_id = new_id()
    most = BandwidthLimits(handler, chosen.ingress_bandwidth, chosen.egress_bandwidth)
    place = runtime.network.plan(sandbox_id, asked.config, most)
    in_zone = (EMPTY_DIR,) if chosen.empty_dir is EmptyDirPlace.ZONE else ()
    return Sandbox(
        sandbox_id,
        SandboxPhase.CREATING,
        now_ns(),
        handler,
        asked.config,
        place,
        kernel=image,
        in_zone=in_zone,
    )


async def _host_files(runtime: Runtime, pod: cri.PodSandboxConfig) -> None:
    """Make the log directory; Invalid or Refused for an unreadable seccomp profile."""
    path = local_profile(pod.linux.security_context, RUN)
    await host_files.seccomp_profile(runtime.paths, pod.metadata, path, RUN)
    await host_files.make_log_directory(runtime.paths, pod.metadata, pod.log_directory)


async def _attach(runtime: Runtime, sandbox: Sandbox, made: Callable[[], None]) -> Attachment:
    attached = await runtime.network.attach(sandbox.attachment, made)
    await runtime.sandboxes.put(replace(runtime.sandboxes.get(sandbox.id), attachment=attached))
    checkpoint("run-pod.network-attached")
    return attached


async def _create_zone(
    runtime: Runtime, sandbox: Sandbox, namespace: Callable[[], Awaitable[object]]
) -> pb.Zone:
    """Boot the zone while the CNI plugins run.

    The network namespace comes first: the zone's interface is made inside.
    """
    found = await runtime.images.kernel(sandbox.kernel) if sandbox.kernel else None
    await namespace()
    shares = shares_of(runtime, sandbox.id, sandbox.config.linux)
    meta, handler = sandbox.config.metadata, runtime.config.handlers[sandbox.handler]
    zone = await runtime.zones.create_zone(
        pb.CreateZoneRequest(
            id=sandbox.id,
            name=f"{meta.namespace}/{meta.name}",
            hostname=sandbox.hostname,
            resources=shares.put(
                sizing.zone_resources(sandbox.config, runtime.config.zone.memory_overhead, handler)
            ),
            profile=handler.profile,
            sysctls=sandbox.config.linux.sysctls,
            interfaces=1,
            netns_path=str(sandbox.attachment.netns),
            id_mapping=_id_mapping(sandbox.config),
            kernel=found,
            mode=MODES[handler.mode],
            seclabel=handler.seclabel,
            scratch_bytes=handler.scratch_size or None,
            cpupool=handler.cpupool,
            devices=devices.of_pod(sandbox.config.annotations, handler),
            pod_uid=meta.uid,
            memory_bound_bytes=handler.memory_max,
            vcpus_bound=handler.vcpus_max,
            disk_rates=disk_rates(sandbox.config, sandbox.handler, handler),
        )
    )
    runtime.shares[sandbox.id] = (shares.weight, shares.cap)
    checkpoint("run-pod.zone-created")
    return zone


async def _check_kernel(runtime: Runtime, sandbox: Sandbox) -> None:
    """Unsupported: the toolstack's own kernel lacks a feature of the pod's request."""
    # A zone with its own kernel image reports the limits of its kernel by itself.
    if sandbox.kernel:
        return
    security = sandbox.config.linux.security_context
    await refuse_labels(runtime.host, RUN, sandbox.config.metadata.name, security.selinux_options)
    if _id_mapping(sandbox.config) and not (await runtime.host.info()).user_namespaces:
        cause = "the kernel of zones has no user namespaces"
        raise Unsupported(RUN, sandbox.config.metadata.name, cause, "leave out hostUsers: false")


async def _check_requirements(runtime: Runtime, sandbox: Sandbox) -> None:
    """Refused: this host lacks a requirement of the handler.  Without requirements protectd is not asked."""
    handler = runtime.config.handlers[sandbox.handler]
    if not handler.asks_host:
        return
    if lacking := unmet(handler, await runtime.host.info(fresh=handler.needs_fresh_facts)):
        cause = f"this host cannot honour runtime handler {sandbox.handler}: {lacking}"
        hint = "protect host shows the handlers that it can"
        raise Refused(RUN, sandbox.config.metadata.name, cause, hint)


def _id_mapping(config: cri.PodSandboxConfig) -> pb.IdMapping | None:
    mapping = pod_userns(RUN, config.metadata.name, config.linux.security_context.namespace_options)
    return pb.IdMapping(host_id=mapping.host_id, length=mapping.length) if mapping else None


async def _ready(runtime: Runtime, sandbox_id: str, zone: pb.Zone) -> None:
    """Record that the pod is ready; Refused if the stream of changes has reported the end of its zone."""
    sandbox = runtime.sandboxes.get(sandbox_id)
    if sandbox.death_reason:
        raise Refused(RUN, sandbox_id, f"its zone ended: {sandbox.death_reason}")
    # An older protectd or agent does not know file volumes.
    in_zone = (*sandbox.in_zone, SMALL_FILES) if zone.file_volumes else sandbox.in_zone
    await runtime.sandboxes.put(replace(sandbox, phase=SandboxPhase.READY, in_zone=in_zone))


def _release_kernel(runtime: Runtime, sandbox_id: str) -> None:
    """Release the kernel image, unless the pod is still recorded: its zone may still boot from the image."""
    if not runtime.sandboxes.has(sandbox_id):
        kernel.release(runtime, sandbox_id)
