"""``make demo``: a real image runs as a pod in a zone, step by step, and everything is removed again."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from grpc.aio import AioRpcError

from tools.localnode import images, network, node, registry
from tools.localnode.cri_client import connect_client
from tools.localnode.processes import ProgramFailed
from tools.localnode.screen import Screen
from tools.localnode.story import tell_story

HOST = "registry.demo.example"
IMAGE = f"{HOST}/debian/busybox:1"


def main() -> int:
    """Run the demo; the exit status is 0 if every step succeeded."""
    parser = argparse.ArgumentParser(prog="tools.localnode.demo", description=__doc__)
    parser.add_argument("--toolstack", choices=("fake", "libxl"), default="fake")
    parser.add_argument("--folder", type=Path, help="keep logs and configuration here")
    parser.add_argument("--picture", type=Path, help="write what is shown as an SVG, too")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="xenpod-demo-"))
    screen = Screen(recorded=arguments.picture is not None)
    try:
        asyncio.run(_demo(folder, arguments.toolstack, screen))
    except (ProgramFailed, AioRpcError) as error:
        details = error.details() if isinstance(error, AioRpcError) else str(error)
        screen.failed(details or str(error), _log_tails(folder))
        return 1
    finally:
        if not arguments.folder:
            shutil.rmtree(folder)
    if arguments.picture:
        screen.picture(arguments.picture, "make demo")
    return 0


async def _demo(folder: Path, toolstack: str, screen: Screen) -> None:
    begun = time.monotonic()
    screen.title("xenpod: every pod its own Xen virtual machine")
    async with AsyncExitStack() as stack:
        with screen.step("start a private registry") as done:
            address = await stack.enter_async_context(registry.serve_registry(folder / "registry"))
            done(address)
        with screen.step("build an image from Debian's busybox, push it") as done:
            image = await asyncio.to_thread(images.busybox)
            digest = await asyncio.to_thread(images.push, address, IMAGE.partition("/")[2], image)
            done(digest[:19])
        with screen.step("start protectd and xenpod-cri") as done:
            layout = await asyncio.to_thread(node.prepare, folder, toolstack, masquerade=False)
            await asyncio.to_thread(registry.mirror, layout.certs, HOST, address)
            stack.push_async_callback(network.remove_bridge, layout.bridge)
            served = await stack.enter_async_context(node.serve_node(layout, toolstack))
            done("on private sockets")
        client = await stack.enter_async_context(connect_client(served.cri_socket, layout.logs / "pods"))
        await tell_story(client, served, IMAGE, screen)
    screen.note(f"everything removed; {time.monotonic() - begun:.1f} s in all")


def _log_tails(folder: Path) -> str:
    """The last lines of the daemons' logs."""
    tails = []
    for log in sorted((folder / "log").glob("*.log")):
        last = log.read_text(errors="replace").splitlines()[-15:]
        tails.append("\n".join([f"-- {log.name}", *last]))
    return "\n".join(tails)


if __name__ == "__main__":
    sys.exit(main())
