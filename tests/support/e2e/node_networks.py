"""Networks of the nodes of a cluster on one machine: a network namespace for each node, and a bridge."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from tools.localnode import network
from tools.localnode.network import Bridge

_NAMESPACES = Path("/run/netns")


@dataclass(frozen=True)
class NodeNetwork:
    """The network namespace of a node, with its address on the bridge and the addresses of its pods."""

    namespace: str
    address: str
    pods: IPv4Network

    @property
    def launcher(self) -> tuple[str, ...]:
        """Begins the command line of a program of the node; the program keeps the process id."""
        return ("nsenter", f"--net={_NAMESPACES / self.namespace}", "--")


@dataclass(frozen=True)
class NodeNetworks:
    """The bridge, the machine's own address on the bridge, and the nodes."""

    bridge: Bridge
    address: str
    nodes: Sequence[NodeNetwork]


@contextlib.contextmanager
def node_networks(owner: Path, pods: Sequence[IPv4Network]) -> Iterator[NodeNetworks]:
    """Make a namespace for each subnet of pods; all are removed at the end.

    The machine and every node reach each pod by its own address. Rules of kube-proxy and of CNI plugins stay
    in the namespaces.
    """
    bridge = network.bridge_for(f"{owner}/nodes")
    own, *others = (
        str(address) for _, address in zip(range(1 + len(pods)), bridge.subnet.hosts(), strict=False)
    )
    nodes = [
        NodeNetwork(f"{bridge.name}-{number}", address, subnet)
        for number, (address, subnet) in enumerate(zip(others, pods, strict=True), 1)
    ]
    made = NodeNetworks(bridge, own, nodes)
    with contextlib.ExitStack() as undo:
        _ip("link", "add", bridge.name, "type", "bridge")
        undo.callback(_ip, "link", "del", bridge.name)  # and with it the routes to the pods
        _ip("address", "add", f"{own}/{bridge.subnet.prefixlen}", "dev", bridge.name)
        _ip("link", "set", bridge.name, "up")
        for number, node in enumerate(nodes, 1):
            _ip("netns", "add", node.namespace)
            undo.callback(_ip, "netns", "del", node.namespace)  # and with it the pair of interfaces
            _attach(made, node, f"{bridge.name}n{number}")
        yield made


def _attach(made: NodeNetworks, node: NodeNetwork, port: str) -> None:
    """Connect a node with the bridge, and make the routes to its pods and to the pods of other nodes."""
    inside = ("-n", node.namespace)
    _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
    _ip("link", "set", port, "master", made.bridge.name, "up")
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "address", "add", f"{node.address}/{made.bridge.subnet.prefixlen}", "dev", "eth0")
    _ip(*inside, "link", "set", "eth0", "up")
    # Without a route the kernel drops packets to Services before kube-proxy's rules see them.
    _ip(*inside, "route", "add", "default", "via", made.address)
    for other in made.nodes:
        if other != node:
            _ip(*inside, "route", "add", str(other.pods), "via", other.address)
    _ip("route", "add", str(node.pods), "via", node.address, "dev", made.bridge.name)
    subprocess.run([*node.launcher, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
