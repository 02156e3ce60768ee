"""Assembles xenpod-cri's state and ports, and runs its background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from grpc import GenericRpcHandler

from cri.cni import template
from cri.cni.conf import ConfDir
from cri.cni.network import Network
from cri.cni.plugin import Plugins
from cri.config import CriConfig
from cri.delegate.images import assembly
from cri.delegate.service import Delegation, delegating
from cri.rpc import handlers
from cri.runtime import Images, PodNetwork, Runtime, now_ns
from cri.sandbox import kernel
from cri.sandbox.reconcile import Reconciler
from cri.state.changes import StateChanges
from cri.state.container import NEXT as CONTAINER_NEXT
from cri.state.container import Container
from cri.state.database import Database
from cri.state.events import Events
from cri.state.list_capacity import ListCapacity
from cri.state.names import Names, container_name, sandbox_name
from cri.state.records import Records
from cri.state.sandbox import NEXT as SANDBOX_NEXT
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.zones.client import Zones
from cri.zones.follow import Follower, HostInfo
from daemonkit.config import existing_file
from daemonkit.convert import WrongKey
from daemonkit.faults import Fault, Missing
from daemonkit.host.paths import HostPaths
from daemonkit.logs import fields
from daemonkit.observe import traces
from daemonkit.rpc.client import channel
from images.manager import ImageManager
from images.registry import names
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc as rpc

log = logging.getLogger(__name__)

_FIRST_SWEEP = 10.0


@contextlib.asynccontextmanager
async def running(config: CriConfig, images: Images, network: PodNetwork) -> AsyncIterator[Runtime]:
    """Load the records, and run the background tasks while the block does.

    Half-done work of an earlier daemon is finished before the block begins; without protectd, later.
    """
    async with contextlib.AsyncExitStack() as undo:
        store = await Database.open(config.state_dir / "cri.db")
        undo.push_async_callback(store.close)
        link = channel(config.protect_socket)
        undo.push_async_callback(link.close, None)
        paths = HostPaths(config.guest_dir / "lookup")
        undo.callback(paths.close)
        runtime = await _runtime(config, images, store, Zones(traces.traced(link)), network, paths)
        reconciler = Reconciler(runtime)
        await undo.enter_async_context(_background(runtime.follower.run(), reconciler.run()))
        try:
            async with asyncio.timeout(_FIRST_SWEEP):
                await reconciler.first_done.wait()
        except TimeoutError:
            log.warning("serving before protectd answers", extra=fields(cause=runtime.follower.trouble))
        yield runtime


def cni(config: CriConfig) -> Network:
    """Assemble the pod network from CNI plugins."""
    settings = config.cni
    return Network(
        ConfDir(settings.conf_dir),
        Plugins(settings.bin_dirs, settings.timeout),
        settings.netns_dir,
        config.run_dir / "cni",
        settings.timeout,
    )


def check_host(config: CriConfig) -> None:
    """Check the values that depend on this host.  WrongKey: a value cannot work on this host."""
    if config.cni.conf_template is not None:
        existing_file("cni.conf_template", config.cni.conf_template)
        template.check("cni.conf_template", config.cni.conf_template)
    if config.delegate.endpoint and config.delegate.path.resolve() == config.listen.resolve():
        raise WrongKey("delegate.endpoint", "it leads to our own socket: set it to the other runtime's")
    tls = config.streaming.tls
    for name, path in (("certificate", tls.certificate), ("key", tls.key), ("client_ca", tls.client_ca)):
        existing_file(f"streaming.tls.{name}", path)


def check_kernels(config: CriConfig, images: Images) -> None:
    """Check the handlers' kernels.  WrongKey: a kernel image is not on the host."""
    for name, handler in config.handlers.items():
        try:
            if handler.kernel:
                images.resolve(str(names.parse(handler.kernel)))
        except Missing:
            cause = f"the image {handler.kernel} is not on this host"
            hint = "start without the handler, run `protect image pull`, then add it"
            raise WrongKey(f"handlers.{name}.kernel", f"{cause} ({hint})") from None


async def check_profiles(runtime: Runtime) -> None:
    """Check the handlers' profiles.  WrongKey: protectd lacks a profile, or a size is out of its bounds.

    A requirement that this host does not meet is only logged, because the file is correct.  If protectd is
    away, the daemon serves without this check, and Status reports wrong keys later.
    """
    try:
        host = await runtime.host.info()
    except Fault as fault:
        log.warning("profiles of handlers were not checked", extra=fields(cause=fault))
        return
    for name, wrong in handlers.troubles(runtime.config, host).items():
        raise WrongKey(f"handlers.{name}.{wrong.key}", wrong.cause)
    for name, lacking in handlers.unusable(runtime.config, host).items():
        log.warning("this host cannot honour a handler", extra=fields(handler=name, cause=lacking))
    for name, why in handlers.fallbacks(runtime.config, host).items():
        log.warning("%s", why, extra=fields(handler=name))


@contextlib.asynccontextmanager
async def delegation(
    runtime: Runtime, service: rpc.RuntimeServiceServicer
) -> AsyncIterator[Delegation | None]:
    """Follow the delegate while the block runs; None: no delegate."""
    config = runtime.config
    if not config.delegate.endpoint:
        yield None
        return
    both = Delegation(
        config.delegate,
        service,
        config.handlers,
        runtime.sandboxes,
        runtime.containers,
        config.state_dir,
        runtime.capacity,
    )
    async with delegating(both):
        yield both


@contextlib.asynccontextmanager
async def mixed_images(
    runtime: Runtime, manager: ImageManager, both: Delegation | None
) -> AsyncIterator[GenericRpcHandler[Any, Any] | None]:
    """ImageService in front of both runtimes, while the block runs; None: no delegate."""
    if both is None:
        yield None
        return
    config, holder = runtime.config, runtime.sandbox_names.holder

    def is_ours(pod: cri.PodSandboxMetadata) -> bool:
        return holder(sandbox_name(pod)) is not None

    parts = assembly.mixed_images(config.delegate, both.delegate, manager, config.handlers, is_ours)
    async with parts as (service, both.ensure):
        yield service


async def _runtime(
    config: CriConfig,
    images: Images,
    store: Database,
    zones: Zones,
    network: PodNetwork,
    paths: HostPaths,
) -> Runtime:
    sandboxes = Records("pod sandbox", SANDBOX_NEXT, store.save_sandbox, store.delete_sandbox)
    containers = Records("container", CONTAINER_NEXT, store.save_container, store.delete_container)
    changes = StateChanges(sandboxes, containers, now_ns)
    unfinished = asyncio.Event()
    follower = Follower(zones, changes, unfinished.set)
    runtime = Runtime(
        config=config,
        sandboxes=sandboxes,
        containers=containers,
        sandbox_names=Names("pod sandbox"),
        container_names=Names("container"),
        network=network,
        zones=zones,
        follower=follower,
        changes=changes,
        images=images,
        events=Events(sandboxes, containers, now_ns),
        host=HostInfo(zones, follower, [handler.seclabel for handler in config.handlers.values()]),
        unfinished=unfinished,
        paths=paths,
        capacity=ListCapacity(sandboxes, containers),
    )
    await _adopt(runtime, store)
    return runtime


async def _adopt(runtime: Runtime, store: Database) -> None:
    sandboxes, containers = await store.load()
    for sandbox in sandboxes:
        runtime.sandboxes.adopt(sandbox)
        runtime.sandbox_names.reserve(sandbox_name(sandbox.config.metadata), sandbox.id)
        _hold_kernel(runtime, sandbox)
    for container in containers:
        runtime.containers.adopt(container)
        name = container_name(container.config.metadata, container.sandbox_id)
        runtime.container_names.reserve(name, container.id)
        _hold_images(runtime, container)
    runtime.images.collect()
    log.info("records loaded", extra=fields(sandboxes=len(sandboxes), containers=len(containers)))


def _hold_kernel(runtime: Runtime, sandbox: Sandbox) -> None:
    """Hold the kernel image until the zone is gone, unless the zone is gone already."""
    if sandbox.phase in (SandboxPhase.STOPPED, SandboxPhase.REMOVING):
        return
    try:
        kernel.hold(runtime, sandbox.kernel, sandbox.id)
    except Missing as fault:
        log.error("a zone's kernel image is gone: %s", fault, extra=fields(sandbox=sandbox.id))


def _hold_images(runtime: Runtime, container: Container) -> None:
    """Hold a container's images.  A lost image is only logged: the zone has the images open in any case."""
    for image_id in container.images:
        try:
            runtime.images.hold(image_id, container.id)
        except Missing as fault:
            log.error("a container's image is gone: %s", fault, extra=fields(container=container.id))


@contextlib.asynccontextmanager
async def _background(*runs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run tasks while the block does.  A failed task ends the block.

    A daemon without news of its zones must not continue; the service manager restarts the daemon.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run) for run in runs]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
