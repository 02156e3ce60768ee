"""Changes the labels of a Node object through the Kubernetes API."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path

from cluster.client.connection import TIMEOUT_SECONDS, Purpose, api_client
from cluster.labeller.labels import Labels, is_ours
from daemonkit.faults import Broken

CHECK_SECONDS = 300.0
"""Seconds after which the node is read again without a change here."""

_OPERATION = "label node"
_MERGE = "application/merge-patch+json"  # RFC 7386: null removes a key
_RIGHTS = "it needs get and patch of nodes; a kubelet's own credentials suffice for its node"


class NodeLabels:
    """The labeller's labels of one node; foreign labels stay.

    A ``kubeconfig`` of None means the service account of the labeller's pod.
    """

    def __init__(self, name: str, kubeconfig: Path | None) -> None:
        self._name = name
        self._kubeconfig = kubeconfig
        self._put: Labels | None = None
        self._check_at = 0.0

    async def put(self, labels: Labels) -> bool:
        """Write these labels, and remove our other labels; returns whether any changed.

        Denied, Missing, Unreachable: the API server refused, does not know the node, or does not answer.
        Invalid: no usable credentials.
        """
        if labels == self._put and time.monotonic() < self._check_at:
            return False
        self._put = None  # a patch without an answer may have been made
        changed = await self._exchange(labels)
        self._put = labels
        self._check_at = time.monotonic() + CHECK_SECONDS * random.uniform(0.8, 1.2)
        return changed

    async def remove(self) -> bool:
        """Remove all our labels from the node; returns whether any existed."""
        self._put = None
        return await self._exchange({})

    async def _exchange(self, wanted: Labels) -> bool:
        """Read the node, and patch the differences.  Credentials rotate, and are read each time."""
        from kubernetes_asyncio import client

        purpose = Purpose(_OPERATION, self._name, self._hint)
        async with api_client(self._kubeconfig, purpose) as link:
            api = client.CoreV1Api(link)
            node = await api.read_node(self._name, _request_timeout=TIMEOUT_SECONDS)
            metadata = getattr(node, "metadata", None)
            if metadata is None or metadata.name != self._name:
                raise Broken(_OPERATION, self._name, "the API server's answer is not this node")
            patch = difference(metadata.labels or {}, wanted)
            if patch:
                body = {"metadata": {"labels": patch}}
                await api.patch_node(self._name, body, _request_timeout=TIMEOUT_SECONDS, _content_type=_MERGE)
        return bool(patch)

    def _hint(self, status: int) -> str:
        if status in (401, 403):
            return _RIGHTS
        return "the kubelet has not registered it, or --name is wrong" if status == 404 else ""


def difference(there: Labels, wanted: Labels) -> Mapping[str, str | None]:
    """The merge patch from ``there`` to ``wanted``; only our labels count."""
    patch: dict[str, str | None] = {key: None for key in there if is_ours(key) and key not in wanted}
    patch.update((key, value) for key, value in wanted.items() if there.get(key) != value)
    return patch
