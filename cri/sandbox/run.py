"""RunPodSandbox: a network namespace attached by CNI, a zone, and the zone's interface joined to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from cri.checks import sandbox as request
from cri.checks.userns import pod_userns
from cri.cni.attachment import Attachment
from cri.sandbox import kernel, logdir
from cri.sandbox.sizing import zone_resources
from cri.sandbox.undo import make_room, undo
from cri.state.ids import new_id
from cri.state.names import sandbox_name
from cri.state.node import Node, now_ns
from cri.state.sandbox import Phase, Sandbox
from cri.together import both, to_end
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Refused, Unsupported
from daemonkit.logs import fields
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

log = logging.getLogger(__name__)

_RUN = "run pod sandbox"

declare(
    "run-pod.recorded",
    "run-pod.network-attached",
    "run-pod.zone-created",
    "run-pod.both-made",
    "run-pod.connected",
    "run-pod.ready",
)


async def run(node: Node, asked: cri.RunPodSandboxRequest) -> str:
    """The new sandbox's id.  When this fails, nothing of the pod is left, or a leftover is being removed."""
    sandbox = _plan(node, asked)
    kernel.hold(node, sandbox.kernel, sandbox.id)
    try:
        return await _run(node, sandbox)
    except BaseException:
        if not node.sandboxes.has(sandbox.id):
            kernel.release(node, sandbox.id)
        raise


async def _run(node: Node, sandbox: Sandbox) -> str:
    await _check_kernel(node, sandbox)
    name = sandbox_name(sandbox.config.metadata)
    await make_room(node, name)
    async with AsyncExitStack() as steps:
        node.sandbox_names.reserve(name, sandbox.id)
        steps.push_async_callback(_undo, node, sandbox.id)
        await node.sandboxes.add(sandbox)
        checkpoint("run-pod.recorded")
        namespace = asyncio.Event()
        attached, _ = await both(
            _attach(node, sandbox, namespace.set), _create_zone(node, sandbox, namespace.wait)
        )
        checkpoint("run-pod.both-made")
        await node.zones.connect_network(sandbox.id, str(attached.netns), attached.interface)
        checkpoint("run-pod.connected")
        await _ready(node, sandbox.id)
        steps.pop_all()
    checkpoint("run-pod.ready")
    log.info("pod runs", extra=fields(sandbox=sandbox.id, name=name, addresses=",".join(attached.addresses)))
    return sandbox.id


def _plan(node: Node, asked: cri.RunPodSandboxRequest) -> Sandbox:
    """The sandbox to be, of a request that has been checked; no side effects but its log directory."""
    handler = request.handler_name(asked.runtime_handler, node.config.handlers)
    request.check(asked.config)
    zone_resources(asked.config, node.config.zone.memory_overhead)
    image = kernel.resolve(
        node, kernel.chosen(asked.config, node.config.handlers[handler], node.config.kernels)
    )
    sandbox_id = new_id()
    place = node.network.plan(sandbox_id, asked.config)
    logdir.make(asked.config.log_directory)
    return Sandbox(sandbox_id, Phase.CREATING, now_ns(), handler, asked.config, place, kernel=image)


async def _attach(node: Node, sandbox: Sandbox, made: Callable[[], None]) -> Attachment:
    attached = await node.network.attach(sandbox.attachment, made)
    await node.sandboxes.put(replace(node.sandboxes.get(sandbox.id), attachment=attached))
    checkpoint("run-pod.network-attached")
    return attached


async def _create_zone(node: Node, sandbox: Sandbox, namespace: Callable[[], Awaitable[object]]) -> None:
    """Once the namespace is there, which the zone's interface can then be born in; plugins run meanwhile."""
    found = await node.images.kernel(sandbox.kernel) if sandbox.kernel else None
    await namespace()
    meta = sandbox.config.metadata
    await node.zones.create_zone(
        pb.CreateZoneRequest(
            id=sandbox.id,
            name=f"{meta.namespace}/{meta.name}",
            hostname=sandbox.hostname,
            resources=zone_resources(sandbox.config, node.config.zone.memory_overhead),
            profile=node.config.handlers[sandbox.handler].profile,
            sysctls=sandbox.config.linux.sysctls,
            interfaces=1,
            netns_path=str(sandbox.attachment.netns),
            id_mapping=_id_mapping(sandbox.config),
            kernel=found,
        )
    )
    checkpoint("run-pod.zone-created")


async def _check_kernel(node: Node, sandbox: Sandbox) -> None:
    """Unsupported when zones cannot have what is asked for."""
    # Another kernel's zone says for itself what it cannot.
    if sandbox.kernel:
        return
    if _id_mapping(sandbox.config) and not (await node.host.info()).user_namespaces:
        cause = "user namespaces are not there: the kernel of zones has none"
        raise Unsupported(_RUN, sandbox.config.metadata.name, cause, "leave out hostUsers: false")


def _id_mapping(config: cri.PodSandboxConfig) -> pb.IdMapping | None:
    mapping = pod_userns(_RUN, config.metadata.name, config.linux.security_context.namespace_options)
    return pb.IdMapping(host_id=mapping.host_id, length=mapping.length) if mapping else None


async def _ready(node: Node, sandbox_id: str) -> None:
    """Refused when the zone ended in between: the stream of changes notes that on a sandbox not yet ready."""
    sandbox = node.sandboxes.get(sandbox_id)
    if sandbox.death_reason:
        raise Refused(_RUN, sandbox_id, f"its zone ended: {sandbox.death_reason}")
    await node.sandboxes.put(replace(sandbox, phase=Phase.READY))


async def _undo(node: Node, sandbox_id: str) -> None:
    await to_end(undo(node, sandbox_id))
