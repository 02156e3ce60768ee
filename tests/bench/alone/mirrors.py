"""Measures pulls with a dead first mirror, beside containerd with the same hosts.toml.

``python -m tests.bench.alone.mirrors``: each kind of dead mirror gets a mirror, a registry name and an image;
then a second image is pulled through the same mirror. The benchmark asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import grpc
from rich.console import Console
from rich.table import Table

from tests.bench import report, sides
from tests.bench.sides import Side
from tests.support.images.http_server import HttpServer, dropping_connections
from tools.localnode import images, layers, registry
from tools.localnode.layers import LayerEntry

HOST = "bench.test"
PAUSE = f"{HOST}/pause:1"
_DIAL = "1s"
_STALL = "5s"
_LAYERS = 12
_LIMIT = 20.0
"""Seconds for one pull; containerd has no deadline for a silent host."""


@contextmanager
def _refused() -> Iterator[str]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{one.getsockname()[1]}"


@contextmanager
def _silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class _Failing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer 500."""
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def _answering_500() -> Iterator[str]:
    with HttpServer(_Failing) as server:
        yield server.netloc


DEAD: Mapping[str, Callable[[], AbstractContextManager[str]]] = {
    "no mirror": _refused,
    "refused": _refused,
    "500": _answering_500,
    "SYNs dropped": dropping_connections,
    "silent": _silent,
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="tests.bench.alone.mirrors", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="xenpod-bench-"))
    try:
        asyncio.run(_bench(folder, arguments.rounds, Console(width=None if sys.stdout.isatty() else 110)))
    finally:
        shutil.rmtree(folder)
    return 0


async def _bench(folder: Path, rounds: int, console: Console) -> None:
    version = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True)
    console.print(f"beside {version.stdout.strip()}", highlight=False)
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(registry.serve_registry(folder / "registry"))
        pause = images.PushedImage([layers.pause(folder)], {"Entrypoint": ["/pause"]})
        await asyncio.to_thread(images.push, address, PAUSE.partition("/")[2], pause)
        settings = f'[images]\nstall_timeout = "{_STALL}"\n'
        ours = await stack.enter_async_context(sides.ours(folder / "x", address, HOST, "", cri=settings))
        theirs = await stack.enter_async_context(sides.theirs(folder / "c", address, HOST, PAUSE))
        running = {report.OURS: ours, report.THEIRS: theirs}
        took: dict[tuple[str, str, str], list[float]] = {}
        for number in range(rounds):
            for kind, dead in DEAD.items():
                with ExitStack() as held:
                    mirror = held.enter_context(dead())
                    name = f"{kind.replace(' ', '-').lower()}{number}.test"
                    for certs in (folder / "x/certs.d", folder / "c/certs.d"):
                        _configure(certs / name, "" if kind == "no mirror" else mirror, address)
                    await _round(running, address, kind, name, took)
        _show(took, console)


def _configure(folder: Path, mirror: str, address: str) -> None:
    folder.mkdir(parents=True)
    text = f'server = "http://{address}"\n'
    if mirror:
        text += f'[host."http://{mirror}"]\ncapabilities = ["pull", "resolve"]\ndial_timeout = "{_DIAL}"\n'
    (folder / "hosts.toml").write_text(text)


async def _round(
    running: Mapping[str, Side],
    address: str,
    kind: str,
    name: str,
    took: dict[tuple[str, str, str], list[float]],
) -> None:
    """Two images through one mirror, each side in turn."""
    for which in ("first image", "next image"):
        repository = f"{name.partition('.')[0]}/{which.replace(' ', '-')}:1"
        contents = (f"{repository} {number}".encode() for number in range(_LAYERS))
        files = [LayerEntry(f"file{number}", 0o644, content) for number, content in enumerate(contents)]
        image = images.PushedImage([layers.layer(file) for file in files])
        await asyncio.to_thread(images.push, address, repository, image)
        for side, runtime in running.items():
            begun = time.perf_counter()
            try:
                async with asyncio.timeout(_LIMIT):
                    await runtime.client.pull(f"{name}/{repository}")
                seconds = time.perf_counter() - begun
            except (TimeoutError, grpc.aio.AioRpcError):
                seconds = float("inf")
            took.setdefault((kind, which, side), []).append(seconds)


def _show(took: Mapping[tuple[str, str, str], list[float]], console: Console) -> None:
    table = Table(title=f"pulls of {_LAYERS} small layers, first mirror dead, s (p50)", box=None)
    for column in ("mirror", "", report.OURS, report.THEIRS, "ratio"):
        table.add_column(column, justify="left" if column in ("mirror", "") else "right")
    for kind, which in dict.fromkeys((kind, which) for kind, which, _ in took):
        ours, theirs = (
            sorted(values)[len(values) // 2]
            for values in (took[kind, which, report.OURS], took[kind, which, report.THEIRS])
        )
        ratio = f"{ours / theirs:.2f}" if theirs != float("inf") else "-"
        cells = [f"{value:.2f}" if value != float("inf") else f"> {_LIMIT:.0f}" for value in (ours, theirs)]
        table.add_row(kind, which, *cells, ratio)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
