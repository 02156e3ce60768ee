"""kube-proxy of one node, in the network namespace of the node."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.cluster.programs import program
from tests.support.e2e.node_networks import NodeNetwork
from tools.localnode.processes import Output, background

_READY = "Caches are synced"
_TIMEOUT = 120.0


@asynccontextmanager
async def kube_proxy(
    folder: Path, node: NodeNetwork, name: str, kubeconfig: Path, pods: str
) -> AsyncIterator[None]:
    """Serve Services on the node while the block runs.  ``pods``: the bridge of the node's pods."""
    settings = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": node.address,
        "healthzBindAddress": f"{node.address}:10256",
        "metricsBindAddress": f"{node.address}:10249",
        "hostnameOverride": name,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "detectLocalMode": "BridgeInterface",
        "detectLocal": {"bridgeInterface": pods},
        # Only the first network namespace may set these.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
    config = folder / "kube-proxy.json"
    config.write_text(json.dumps(settings))
    output = Output(folder / "kube-proxy.log")
    command = (*node.launcher, program("kube-proxy"), f"--config={config}", "--v=2")
    async with background(*command, output=output):
        await output.line_with(_READY, _TIMEOUT)
        yield
