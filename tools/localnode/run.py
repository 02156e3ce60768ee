"""``make run DIR=<folder>``: both daemons in the foreground, with all their files under the folder."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from tools.localnode import network, node
from tools.localnode.cri_client import Client, connect_client
from tools.localnode.processes import ProgramFailed


def main() -> int:
    """Run the daemons; exit status 0 after Ctrl-C or a clean-up, 1 if a daemon failed or ended."""
    parser = argparse.ArgumentParser(prog="tools.localnode.run", description=__doc__)
    parser.add_argument("folder", type=Path, help="holds configuration, state, sockets and logs")
    parser.add_argument("--toolstack", choices=("fake", "libxl"), default="fake")
    parser.add_argument("--remove-pods", action="store_true", help="remove every pod, then stop")
    arguments = parser.parse_args()
    try:
        return asyncio.run(_run_node(arguments.folder, arguments.toolstack, arguments.remove_pods))
    except ProgramFailed as error:
        _print(f"error: {error}")
        return 1


async def _run_node(folder: Path, toolstack: str, remove_pods: bool) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    layout = await asyncio.to_thread(node.prepare, folder, toolstack, masquerade=True)
    async with node.serve_node(layout, toolstack) as served:
        async with connect_client(served.cri_socket, layout.logs) as client:
            if remove_pods:
                await _remove_pods(client, layout)
                return 0
            _announce(served)
            ended = await _until_stopped(served, stop)
            left = [] if ended else await client.pods()
    if ended:
        raise ProgramFailed(f"{ended} ended by itself; its log ends:\n{_tail(served, ended)}")
    _print("stopped both daemons")
    if not left:
        await network.remove_bridge(layout.bridge)
    else:
        again = f"{sys.executable} -m tools.localnode.run --toolstack {toolstack}"
        _print(f"{len(left)} pod(s) go on without them; `make run DIR={folder}` finds them again")
        _print(f"to remove them: {again} --remove-pods {folder}")
    return 0


def _announce(served: node.LocalNode) -> None:
    _print(f"CRI endpoint: unix://{served.cri_socket}")
    _print(f"protectd:     unix://{served.protect_socket}")
    _print(f"logs:         {served.layout.logs}")
    _print("Ctrl-C stops both daemons; pods go on")


async def _until_stopped(served: node.LocalNode, stop: asyncio.Event) -> str:
    """Wait for a signal (returns ``""``) or the end of a daemon (returns its name)."""
    stopped: asyncio.Task[object] = asyncio.create_task(stop.wait())
    deaths: dict[asyncio.Task[object], str] = {
        asyncio.create_task(daemon.process.wait()): daemon.name for daemon in served.daemons
    }
    done, pending = await asyncio.wait({stopped, *deaths}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return next((name for task, name in deaths.items() if task in done), "")


def _tail(served: node.LocalNode, name: str) -> str:
    return next(daemon.output.tail() for daemon in served.daemons if daemon.name == name)


async def _remove_pods(client: Client, layout: node.NodeLayout) -> None:
    pods = await client.pods()
    for pod in pods:
        await client.remove_pod(pod)
    await network.remove_bridge(layout.bridge)
    _print(f"removed {len(pods)} pod(s)")


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # this is its output


if __name__ == "__main__":
    sys.exit(main())
