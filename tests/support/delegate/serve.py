"""``python -m tests.support.delegate.serve DIR``: a containerd in the foreground, for critest and by hand."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from tests.support.delegate.containerd import Surroundings, containerd
from tools.localnode import network


def main() -> int:
    """Run containerd until Ctrl-C; then remove the pods."""
    parser = argparse.ArgumentParser(prog="tests.support.delegate.serve", description=__doc__)
    parser.add_argument("folder", type=Path, help="holds all of its files")
    parser.add_argument("--certs", type=Path, help="folder of mirrors; default: certs.d in the folder")
    parser.add_argument("--pause", default="registry.k8s.io/pause:3.10", help="image of sandboxes")
    parser.add_argument("--containerd", type=Path, metavar="FOLDER", help="of containerd and its shim")
    asyncio.run(_serve(parser.parse_args()))
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    folder: Path = arguments.folder.resolve()
    bridge = network.bridge_for(str(folder))
    network.write_conflist(folder / "net.d", bridge, folder / "addresses", masquerade=True)
    certs = (arguments.certs or folder / "certs.d").resolve()
    made = containerd(folder, Surroundings(arguments.pause, certs, folder / "net.d", arguments.containerd))
    try:
        await made.start()
        print(f"CRI endpoint: unix://{made.socket}", flush=True)  # noqa: T201  # the program's output
        await stop.wait()
    finally:
        await made.close()
        await network.remove_bridge(bridge)


if __name__ == "__main__":
    sys.exit(main())
