"""The measured runtimes; each serves CRI and knows its own processes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from tests.bench import memory
from tests.support.delegate.containerd import Containerd, Surroundings, containerd
from tools.localnode import network, node
from tools.localnode.cri_client import Client, connect_client
from tools.localnode.registry import mirror

WORKLOAD = "sleep"
ON_FAKE = '[fake]\nmemory = "512GiB"\n'
"""protectd's configuration.  The ledger counts a zone's maximum; real use fits the memory."""
_PREFIX = 20
"""Prefix length of the pods' subnet, for thousands of pods."""


@dataclass(frozen=True, slots=True)
class Side:
    """A running runtime."""

    client: Client
    daemons: Collection[int]
    zones: Callable[[], set[int]]
    """Finds the processes of pods, without the containers' own."""
    networks: Path
    """The folder of the network's configuration."""
    store: Path
    """Folder of the images."""
    socket: Path
    """Path of the CRI socket."""


@contextlib.asynccontextmanager
async def ours(
    folder: Path,
    registry: str,
    host: str,
    settings: str,
    *,
    cri: str = "",
    protectd: str = ON_FAKE,
    toolstack: str = "fake",
) -> AsyncIterator[Side]:
    """protectd and xenpod-cri.

    ``settings`` is the start of both configurations; ``cri`` and ``protectd`` are the rest of each.
    """
    layout = _prepare_ours(folder, registry, host, settings + cri, settings + protectd)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(network.remove_bridge, layout.bridge)
        served = await stack.enter_async_context(node.serve_node(layout, toolstack))
        client = await stack.enter_async_context(connect_client(served.cri_socket, folder / "pods"))

        def zones() -> set[int]:
            monitors = memory.with_argument(str(layout.run), "fakedom")
            return _without_workload(monitors | memory.descendants(monitors))

        yield Side(
            client,
            [daemon.process.pid for daemon in served.daemons],
            zones,
            layout.networks,
            folder / "state" / "xenpod" / "images",
            served.cri_socket,
        )


@contextlib.asynccontextmanager
async def theirs(
    folder: Path, registry: str, host: str, pause: str, programs: Path | None = None
) -> AsyncIterator[Side]:
    """Start containerd, from a folder or as installed, with runc."""
    bridge = network.bridge_for(str(folder), _PREFIX)
    networks, certs = folder / "net.d", folder / "certs.d"
    network.write_conflist(networks, bridge, folder / "addresses", masquerade=False)
    mirror(certs, host, registry)
    served = containerd(folder, Surroundings(pause, certs, networks, programs))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(network.remove_bridge, bridge)
        stack.push_async_callback(served.close)
        await served.start()
        client = await stack.enter_async_context(served.client())
        daemons, store = [served.pid], folder / "root"
        yield Side(client, daemons, lambda: _of_pods(served), networks, store, served.socket)


def _prepare_ours(folder: Path, registry: str, host: str, cri: str, protectd: str) -> node.NodeLayout:
    folder.mkdir(parents=True)
    (folder / "cri.toml").write_text(cri)
    (folder / "protectd.toml").write_text(protectd)
    layout = node.NodeLayout(folder.resolve())
    bridge = network.bridge_for(str(layout.folder), _PREFIX)
    network.write_conflist(layout.networks, bridge, layout.addresses, masquerade=False)
    # Both files exist; node.serve_node adds their missing keys.
    layout = node.prepare(folder, "", masquerade=False)
    mirror(layout.certs, host, registry)
    return layout


def _of_pods(served: Containerd) -> set[int]:
    """The shims of a containerd, and their children except the containers' programs."""
    shims = set(served.shims())
    return _without_workload(shims | memory.descendants(shims))


def _without_workload(pids: set[int]) -> set[int]:
    return pids - memory.named(pids, WORKLOAD)
