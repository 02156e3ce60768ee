"""``xenpod-cri --config FILE``: builds the real collaborators, and serves until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio

from cri.config import Config
from cri.container.images import StoredImages
from cri.daemon import cni, running
from cri.images.manager import ImageManager
from cri.images.rpc.service import add_image_services
from cri.rpc.runtime import runtime_service
from cri.streaming.server import serving
from daemonkit import checkpoints, lifecycle, logs, ready
from daemonkit.config import load
from daemonkit.faults import Fault
from daemonkit.grpc_server import serve_unix
from xenpod_proto.cri.v1 import runtime_pb2_grpc as rpc

_DEFAULT_CONFIG = Path("/etc/xenpod/cri.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    parser = argparse.ArgumentParser(
        prog="xenpod-cri", description="Serves CRI: every pod in a zone of its own."
    )
    parser.add_argument("--config", type=Path, default=_DEFAULT_CONFIG, metavar="FILE")
    parser.add_argument(
        "--list-checkpoints",
        action="store_true",
        help="print the steps that [faults] kill_at knows, and exit",
    )
    options = parser.parse_args(arguments)
    if options.list_checkpoints:
        sys.stdout.write("".join(f"{name}\n" for name in checkpoints.names()))
        return 0
    try:
        config = load(Config, options.config)
        logs.setup(config.log_level)
        checkpoints.arm(config.faults.kill_at)
    except (Fault, ValueError) as fault:
        return lifecycle.fail(f"xenpod-cri: {fault}")
    return lifecycle.run(functools.partial(serve, config))


async def serve(config: Config, stop: asyncio.Event) -> None:
    """Until ``stop``; pods go on without us."""
    lifecycle.make_directories(config.run_dir, config.state_dir)
    async with AsyncExitStack() as stack:
        images = ImageManager(config.image_settings())
        stack.push_async_callback(images.stop)
        await images.start()
        runtime = await stack.enter_async_context(running(config, StoredImages(images), cni(config)))

        streaming = await stack.enter_async_context(serving(config.streaming))

        def add_services(server: grpc.aio.Server) -> None:
            rpc.add_RuntimeServiceServicer_to_server(runtime_service(runtime, streaming), server)
            add_image_services(server, images)

        await stack.enter_async_context(serve_unix(config.listen, add_services, name="xenpod-cri"))
        ready.ready(f"serving with {len(runtime.sandboxes.visible())} pods")
        await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
