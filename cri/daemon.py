"""Starts xenpod-cri: checks of the configuration, background tasks, the delegate."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from grpc import GenericRpcHandler

from cri.assembly import CriDaemon, adopt_records, assembled, pod_records
from cri.cni import template
from cri.cni.conf import ConfDir
from cri.cni.network import Network
from cri.cni.plugin import Plugins
from cri.config import CriConfig
from cri.delegate.images import assembly
from cri.delegate.service import Delegation, delegating
from cri.ports import Images, PodNetwork
from cri.rpc import handlers
from cri.state.database import Database
from cri.state.list_capacity import ListCapacity
from cri.state.names import Names, sandbox_name
from cri.state.pod_records import PodRecords
from cri.zones.client import Zones
from cri.zones.follow import HostInfo
from daemonkit.config import existing_file
from daemonkit.convert import WrongKey
from daemonkit.faults import Fault, Missing
from daemonkit.host.paths import HostPaths
from daemonkit.logs import fields
from daemonkit.observe import traces
from daemonkit.rpc.channels import channel
from images.manager import ImageManager
from images.registry import names
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc as rpc

log = logging.getLogger(__name__)

_FIRST_SWEEP_SECONDS = 10.0


@contextlib.asynccontextmanager
async def running_daemon(config: CriConfig, images: Images, network: PodNetwork) -> AsyncIterator[CriDaemon]:
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
        records = pod_records(store)
        await adopt_records(records, images, store)
        zones = Zones(traces.traced(link))
        daemon, reconciler = assembled(config, records, images, network, zones, paths)
        follower = daemon.follower
        await undo.enter_async_context(_background(follower.run(), reconciler.run(follower.synced)))
        try:
            async with asyncio.timeout(_FIRST_SWEEP_SECONDS):
                await reconciler.first_done.wait()
        except TimeoutError:
            log.warning("serving before protectd answers", extra=fields(cause=follower.trouble))
        yield daemon


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
        template.check_template("cni.conf_template", config.cni.conf_template)
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


async def check_profiles(config: CriConfig, facts: HostInfo) -> None:
    """Check the handlers' profiles.  WrongKey: protectd lacks a profile, or a size is out of its bounds.

    A requirement that this host does not meet is only logged, because the file is correct.  If protectd is
    away, the daemon serves without this check, and Status reports wrong keys later.
    """
    try:
        host = await facts.info()
    except Fault as fault:
        log.warning("profiles of handlers were not checked", extra=fields(cause=fault))
        return
    for name, wrong in handlers.troubles(config, host).items():
        raise WrongKey(f"handlers.{name}.{wrong.key}", wrong.cause)
    for name, lacking in handlers.unusable(config, host).items():
        log.warning("this host cannot honour a handler", extra=fields(handler=name, cause=lacking))
    for name, why in handlers.fallbacks(config, host).items():
        log.warning("%s", why, extra=fields(handler=name))


@contextlib.asynccontextmanager
async def delegation(
    config: CriConfig, service: rpc.RuntimeServiceServicer, records: PodRecords, capacity: ListCapacity
) -> AsyncIterator[Delegation | None]:
    """Follow the delegate while the block runs; None: no delegate."""
    if not config.delegate.endpoint:
        yield None
        return
    both = Delegation(
        config.delegate,
        service,
        config.handlers,
        records.sandboxes,
        records.containers,
        config.state_dir,
        capacity,
    )
    async with delegating(both):
        yield both


@contextlib.asynccontextmanager
async def mixed_images(
    config: CriConfig, sandbox_names: Names, manager: ImageManager, both: Delegation | None
) -> AsyncIterator[GenericRpcHandler[Any, Any] | None]:
    """ImageService in front of both runtimes, while the block runs; None: no delegate."""
    if both is None:
        yield None
        return

    def is_ours(pod: cri.PodSandboxMetadata) -> bool:
        return sandbox_names.holder(sandbox_name(pod)) is not None

    parts = assembly.mixed_images(config.delegate, both.delegate, manager, config.handlers, is_ours)
    async with parts as (service, both.ensure):
        yield service


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
