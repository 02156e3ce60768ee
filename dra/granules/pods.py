"""Uids of pods, from the API server: the kubelet's list of what pods have knows only their names."""

from __future__ import annotations

from pathlib import Path

from daemonkit.faults import Missing
from kubeclient.connection import TIMEOUT, Purpose, connected

_DENIED = "it needs the right to get pods"


class PodUids:
    """Pods of one node."""

    def __init__(self, kubeconfig: Path | None, node: str) -> None:
        self._kubeconfig = kubeconfig
        self._node = node

    async def uid(self, namespace: str, name: str) -> str | None:
        """The uid of a pod; None: there is none of that name on this node.  Unreachable, Denied."""
        from kubernetes_asyncio import client

        try:
            async with connected(self._kubeconfig, Purpose("read pod", f"{namespace}/{name}", _hint)) as link:
                found = await client.CoreV1Api(link).read_namespaced_pod(
                    name, namespace, _request_timeout=TIMEOUT
                )
        except Missing:
            return None
        return str(found.metadata.uid) if found.spec.node_name == self._node else None


def _hint(status: int) -> str:
    return _DENIED if status in (401, 403) else ""
