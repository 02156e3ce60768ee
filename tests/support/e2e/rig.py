"""A cluster for Kubernetes' e2e suite: its nodes run one runtime, with DNS, kube-proxy and all images.

The control plane, the registry and the DNS server are on the machine; each node is a network namespace.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.cluster.api import Api, Object
from tests.support.cluster.cgroups import control_group
from tests.support.cluster.cluster import NODES, takes_pods
from tests.support.cluster.control_plane import control_plane
from tests.support.cluster.mixed import kubelet_settings
from tests.support.cluster.programs import program
from tests.support.cri.cri_daemons import CriNode, unmount_below
from tests.support.cri.kubelet import Kubelet, Runtime
from tests.support.cri.kubelet import kubelet as serve_kubelet
from tests.support.delegate.containerd import Containerd, Surroundings, containerd, needs_containerd
from tests.support.delegate.mixed import programs
from tests.support.e2e import images as suite_images
from tests.support.e2e.dns_server import serve_dns
from tests.support.e2e.kube_proxy import kube_proxy
from tests.support.e2e.node_networks import NodeNetwork, node_networks
from tests.support.e2e.request_headers import request_header_flags
from tests.support.protect.daemons import ROOT
from tools.localnode import network, registry
from tools.localnode.processes import ProgramFailed

CACHE = ROOT / "build" / "e2e"
"""Packages and images for the next run, and the reports of the last."""
PAUSE = "registry.k8s.io/pause:3.9"

_SERVICES = "198.18.0.0/16"
_DNS = "198.18.0.10"
_SYSTEM = "/api/v1/namespaces/kube-system/services"
_SLICES = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
# As on a node of its own: specs of the node suite look for the kubelet on its usual ports of loopback.
_KUBELET_PORTS = {"address": "0.0.0.0", "port": 10250, "healthzPort": 10248, "readOnlyPort": 10255}  # noqa: S104
_PROGRAMS = ("e2e.test", "ginkgo", "kube-proxy", "kubectl", "agnhost")
"""Programs of the tier beside those of the other cluster tests."""


class RuntimeName(StrEnum):
    """The runtime of all nodes of a cluster."""

    XENPOD = "xenpod"
    XEN = "xen"
    """xenpod in a Xen dom0."""
    MIXED = "mixed"
    """xenpod, with containerd as delegate: pods that use the host's network run there."""
    CONTAINERD = "containerd"


# Memory of the fake host of each node; containers share the machine's.
_FAKE = {"fake": {"memory": "64GiB"}}
_PROTECTD: Mapping[RuntimeName, Mapping[str, object]] = {
    RuntimeName.XENPOD: _FAKE,
    RuntimeName.MIXED: _FAKE,
    # In emulation, zones in PV mode take half the time.
    RuntimeName.XEN: {"toolstack": "libxl", "profiles": {"default": {"mode": "pv", "memory": "128MiB"}}},
}
"""Settings of protectd."""
RUNTIMES = [
    pytest.param(RuntimeName.XENPOD, id="xenpod"),
    pytest.param(RuntimeName.CONTAINERD, id="containerd", marks=needs_containerd),
]
"""Parameters of tests and fixtures outside of a dom0."""


@dataclass(frozen=True)
class SuiteNode:
    """A node that takes pods."""

    name: str
    network: NodeNetwork
    socket: Path
    """Of the runtime."""
    kubelet: Kubelet


@dataclass(frozen=True)
class Rig:
    """A cluster whose nodes take pods."""

    api: Api
    kubeconfig: Path
    runtime: RuntimeName
    nodes: Sequence[SuiteNode]

    def check(self) -> None:
        """ProgramFailed: a kubelet has ended, and specs failed for no other reason."""
        for node in self.nodes:
            status, output = node.kubelet.process.returncode, node.kubelet.output
            if status is not None:
                raise ProgramFailed(f"the kubelet of {node.name} ended with {status}:\n{output.tail()}")


@dataclass(frozen=True)
class _Delegate:
    """containerd, as the kubelet's runtime."""

    daemon: Containerd


@dataclass(frozen=True)
class _Node:
    """A node before its kubelet starts."""

    name: str
    folder: Path
    network: NodeNetwork
    runtime: Runtime
    bridge: str
    settings: Mapping[str, object]


def lacking(names: Sequence[str] = _PROGRAMS, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The programs that the folder in XENPOD_KUBERNETES does not have."""
    folder = Path(environment.get("XENPOD_KUBERNETES", "/nonexistent"))
    return [name for name in names if not os.access(folder / name, os.X_OK)]


needs_suite = pytest.mark.skipif(
    bool(lacking()), reason="XENPOD_KUBERNETES names no folder with Kubernetes' e2e suite"
)
needs_node_suite = pytest.mark.skipif(
    bool(lacking(("e2e_node.test",))), reason="XENPOD_KUBERNETES names no folder with e2e_node.test"
)


@asynccontextmanager
async def rig(runtime: RuntimeName, count: int = 2, parent: str | None = None) -> AsyncIterator[Rig]:
    """Start a cluster of ``count`` nodes; nothing is left at the end.

    ``parent``: the folder for all files, with a short name; None: the system's folder for temporary files.
    """
    names = [f"node{number}" for number in range(1, 1 + count)]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="xenpod-e2e-", dir=parent)))
        crews = [CriNode(folder / name) for name in names]
        nets = stack.enter_context(node_networks(folder, [one.bridge.subnet for one in crews]))
        address = await stack.enter_async_context(registry.serve_registry(CACHE / "registry", nets.address))
        # The event loop reads the registry's output: a full pipe stops the registry.
        await asyncio.to_thread(suite_images.push_every_image, address, CACHE / "images")
        nodes = [
            await stack.enter_async_context(_started(name, crew, net, address, runtime))
            for name, crew, net in zip(names, crews, nets.nodes, strict=True)
        ]
        flags = (
            f"--service-cluster-ip-range={_SERVICES}",
            "--service-account-jwks-uri=https://kubernetes.default.svc/openid/v1/jwks",
            "--enable-aggregator-routing",  # the machine has no kube-proxy
            *request_header_flags(folder / "front-proxy"),
        )
        planned = control_plane(folder / "control", *flags, authorization="RBAC", address=nets.address)
        api, kubeconfig = await stack.enter_async_context(planned)
        port = await stack.enter_async_context(serve_dns(api, nets.address))
        await _announce_dns(api, nets.address, port)
        joined = []
        for node in nodes:
            kubelet = await stack.enter_async_context(_joined(node, kubeconfig))
            joined.append(SuiteNode(node.name, node.network, node.runtime.daemon.socket, kubelet))
            await api.until(NODES, f"metadata.name={node.name}", takes_pods)
        yield Rig(api, kubeconfig, runtime, joined)


@asynccontextmanager
async def _started(
    name: str, crew: CriNode, net: NodeNetwork, address: str, runtime: RuntimeName
) -> AsyncIterator[_Node]:
    """Start the runtime of one node in the network of the node."""
    network.write_conflist(crew.conf_dir, crew.bridge, crew.addresses, masquerade=False, host_ports=True)
    for host in suite_images.HOSTS:
        registry.mirror(crew.certs, host, address)
    own = crew.folder / "kubelet"
    async with AsyncExitStack() as stack:
        stack.callback(unmount_below, crew.folder)
        # Without control groups of pods the kubelet crashes when a pod is resized.
        settings = kubelet_settings(stack.enter_context(control_group(crew.folder)))
        used: Runtime = crew
        if runtime is RuntimeName.CONTAINERD:
            used = _Delegate(await stack.enter_async_context(_containerd(crew, net)))
        else:
            if runtime is RuntimeName.MIXED:
                delegate = await stack.enter_async_context(_containerd(crew, net))
                endpoint = f"unix://{delegate.socket}"
                crew.configure(delegate={"endpoint": endpoint, "default": "xenpod", "namespaces": ["*"]})
            crew.protectd.configure(**_PROTECTD[runtime])
            await stack.enter_async_context(_xenpod(crew, net))
        yield _Node(name, own, net, used, crew.bridge.name, settings)


@asynccontextmanager
async def _containerd(crew: CriNode, net: NodeNetwork) -> AsyncIterator[Containerd]:
    daemon = containerd(crew.folder / "d", Surroundings(PAUSE, crew.certs, crew.conf_dir, programs()))
    daemon.launcher = net.launcher
    async with AsyncExitStack() as stack:
        stack.push_async_callback(daemon.close)
        await daemon.start()
        yield daemon


@asynccontextmanager
async def _xenpod(crew: CriNode, net: NodeNetwork) -> AsyncIterator[None]:
    for daemon in (crew.daemon, crew.protectd.daemon):
        daemon.launcher = net.launcher
    async with AsyncExitStack() as stack:
        stack.push_async_callback(crew.nothing_left)
        stack.push_async_callback(crew.close)
        await crew.start()
        yield


@asynccontextmanager
async def _joined(node: _Node, kubeconfig: Path) -> AsyncIterator[Kubelet]:
    """Run the kubelet and the kube-proxy of a node."""
    settings = {
        "clusterDNS": [_DNS],
        "clusterDomain": "cluster.local",
        "registryPullQPS": 0,
        "maxPods": 250,
        **node.settings,
    }
    started = serve_kubelet(
        node.runtime,
        node.folder,
        *(
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.network.address}",
        ),
        shipped=True,
        program=program("kubelet"),
        settings=settings,
        address=node.network.address,
        launcher=node.network.launcher,
        ports=_KUBELET_PORTS,
    )
    proxy = kube_proxy(node.folder, node.network, node.name, kubeconfig, node.bridge)
    async with started as made, proxy:
        yield made


async def _announce_dns(api: Api, address: str, port: int) -> None:
    """Make the Service of the DNS server, which runs beside the control plane."""
    ports: list[Object] = [
        {"name": protocol.lower(), "protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")
    ]
    meta = {"name": "kube-dns", "labels": {"k8s-app": "kube-dns"}}
    await api.post(_SYSTEM, {"metadata": meta, "spec": {"clusterIP": _DNS, "ports": ports}})
    labels = {"kubernetes.io/service-name": "kube-dns"}
    body = {
        "metadata": {"name": "kube-dns", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [one | {"port": port} for one in ports],
    }
    await api.post(_SLICES, body)
