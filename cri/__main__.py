"""``xenpod-cri --config FILE``: assembles the daemon, and serves until the stop signal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio

from cri.config import CriConfig
from cri.container.stored_images import StoredImages
from cri.daemon import (
    check_host,
    check_kernels,
    check_profiles,
    cni,
    delegation,
    mixed_images,
    running_daemon,
)
from cri.stats.figures import DaemonFigures
from cri.stats.sampler import sampling
from cri.streaming.ends import end_with_pods
from cri.streaming.server import serving_streams
from daemonkit import daemon, lifecycle
from daemonkit.loop.fair_scheduler import FairScheduler
from daemonkit.loop.in_flight import InFlight
from daemonkit.observe.audit.log import auditing
from daemonkit.observe.exposition import serving_metrics
from daemonkit.observe.traces import tracing
from daemonkit.rpc.server import serve_unix
from images.manager import ImageManager
from images.rpc.service import add_image_services
from xenpod_proto.cri.v1 import runtime_pb2_grpc as rpc

_DEFAULT_CONFIG = Path("/etc/xenpod/cri.toml")
SWITCH_SECONDS = 0.0005
"""Thread switch interval in seconds; CPython's default of 5 ms is too long.

Threads merge the trees of large images.  After each step, the event loop waits for the interpreter up to this
interval, and all callers wait with the loop.  protectd has no merging threads; a shorter interval would only
slow protectd down.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    sys.setswitchinterval(SWITCH_SECONDS)
    description = "Serves CRI: every pod in a zone of its own."
    return daemon.main("xenpod-cri", description, CriConfig, _DEFAULT_CONFIG, serve_cri, arguments)


async def serve_cri(config: CriConfig, stop: asyncio.Event) -> None:
    """Serve until ``stop``; pods keep running afterwards."""
    check_host(config)
    lifecycle.make_directories(config.run_dir, config.state_dir)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(tracing(config.traces, "xenpod-cri"))
        images = ImageManager(config.image_settings())
        stack.push_async_callback(images.stop)
        await images.start()
        stored = StoredImages(images)
        check_kernels(config, stored)
        node = await stack.enter_async_context(running_daemon(config, stored, cni(config)))
        await check_profiles(config, node.host)
        in_flight = InFlight()
        scheduler = FairScheduler(in_flight)
        streaming = await stack.enter_async_context(serving_streams(config.streaming, scheduler=scheduler))
        end_with_pods(node.records.sandboxes, streaming.pods)
        follower = node.follower
        rates = await stack.enter_async_context(sampling(node.records, node.zones, follower.synced))

        service = node.service(streaming, rates)
        both = await stack.enter_async_context(delegation(config, service, node.records, node.capacity))
        mixed = await stack.enter_async_context(
            mixed_images(config, node.records.sandbox_names, images, both)
        )

        def add_services(server: grpc.aio.Server) -> None:
            if both is None:
                rpc.add_RuntimeServiceServicer_to_server(service, server)
            else:
                server.add_generic_rpc_handlers((both.service(),))
            add_image_services(server, images, mixed)

        figures = DaemonFigures(
            node.records, stored, node.network, follower, None if both is None else both.delegate
        )
        await stack.enter_async_context(serving_metrics(config.metrics, "xenpod-cri", [figures.read]))
        audit = await stack.enter_async_context(auditing(config.audit, "xenpod-cri", config.state_dir))
        if audit is not None:
            audit.pod_of = node.records.pod_of
        serve = serve_unix(config.listen, add_services, name="xenpod-cri", in_flight=in_flight, audit=audit)
        await stack.enter_async_context(serve)
        lifecycle.notify_ready(f"serving with {len(node.records.sandboxes.visible())} pods")
        await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
