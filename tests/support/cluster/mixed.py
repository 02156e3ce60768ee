"""A cluster whose node has two runtimes: containerd runs ordinary pods, a RuntimeClass brings a zone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster.api import PATIENCE, ApiRefused, Object
from tests.support.cluster.cluster import CLASSES, PODS, Cluster, controlled, pod
from tests.support.cri.cri_daemons import CriNode
from tests.support.delegate.containerd import Containerd
from tests.support.delegate.mixed import ZONE, two_runtimes
from tools.localnode import images, layers
from tools.localnode.images import PushedImage
from tools.localnode.layers import LayerEntry
from xenpod_proto.cri.v1 import runtime_pb2 as cri

DAEMONS = "/apis/apps/v1/namespaces/default/daemonsets"
UNUSED = "registry.test/unused:1"
NODE_MEMORY = 6 << 30
"""Bytes of memory for all zones together."""


@dataclass
class MixedCluster:
    """The cluster, and the containerd of its node."""

    cluster: Cluster
    delegate: Containerd
    settings: dict[str, Any]
    """The settings of the kubelet."""

    async def zone(self, name: str, *command: str, **spec: Any) -> None:
        """Create a pod in a zone; see ``tests.support.cluster.cluster.pod``."""
        await self.cluster.create(name, *command, runtimeClassName=ZONE, **spec)

    async def daemon_set(
        self, name: str, *command: str, container: Mapping[str, Any] | None = None, **spec: Any
    ) -> str:
        """Create a DaemonSet: the name of its pod, once the pod runs."""
        template = pod(name, *command, container=container, restartPolicy="Always", **spec)
        labels = {"app": name}
        template["metadata"] = {"labels": labels}
        selector = {"selector": {"matchLabels": labels}, "template": template}
        await self.cluster.api.post(DAEMONS, {"metadata": {"name": name}, "spec": selector})
        await self.cluster.api.until(DAEMONS, f"metadata.name={name}", _scheduled)
        found = await self.cluster.api.get(f"{PODS}?labelSelector=app%3D{name}")
        (made,) = found["items"]
        await self.cluster.started(made["metadata"]["name"])
        return str(made["metadata"]["name"])

    async def fetched(self, name: str, port: int, path: str = "/index.html") -> str:
        """Get a page from a web server in the pod, through a forwarded port."""
        client, stream = await self.cluster.api.forward(f"{PODS}/{name}", port)
        try:
            client.streams["data"] = stream
            await client.write("data", f"GET {path} HTTP/1.0\r\n\r\n".encode(), fin=True)
            await client.finished("data")
            return client.text("data").decode().partition("\r\n\r\n")[2].strip()
        finally:
            client.line.close()

    async def plain_class(self) -> None:
        """Make the zones' RuntimeClass the same for all nodes, independent of its old content."""
        with contextlib.suppress(ApiRefused):
            await self.cluster.api.delete(f"{CLASSES}/{ZONE}")
        await self.cluster.api.post(CLASSES, {"metadata": {"name": ZONE}, "handler": ZONE})

    async def pull_unused(self) -> None:
        """Pull an unused image to both runtimes."""
        image = cri.ImageSpec(image=UNUSED, runtime_handler=ZONE)
        async with self.cluster.node.client() as ours, self.delegate.client() as theirs:
            await ours.image.PullImage(cri.PullImageRequest(image=image), timeout=PATIENCE)
            await theirs.pull(UNUSED)

    async def images(self) -> list[list[str]]:
        """The names of each image, of both runtimes together and of containerd alone."""
        async with self.cluster.node.client() as ours, self.delegate.client() as theirs:
            lists = [await one.image.ListImages(cri.ListImagesRequest()) for one in (ours, theirs)]
        return [list(image.repo_tags) for reply in lists for image in reply.images]

    async def tidy(self) -> None:
        """Remove all DaemonSets, pods and their remains."""
        await self.cluster.api.delete(f"{DAEMONS}?propagationPolicy=Background")
        await self.cluster.tidy()


@contextlib.asynccontextmanager
async def mixed_cluster(folder: Path, authorization: str = "AlwaysAllow") -> AsyncIterator[MixedCluster]:
    """Start the cluster; nothing is left at the end."""
    node = CriNode(folder / "n")
    node.protectd.configure(memory={"total": NODE_MEMORY})
    handlers = {ZONE: {"memory": 128 << 20}}
    async with contextlib.AsyncExitStack() as stack:
        started = two_runtimes(folder, node, default="delegate", handlers=handlers)
        both = await stack.enter_async_context(started)
        unused = PushedImage([layers.layer(LayerEntry("unused"))])
        images.push(both.registry, UNUSED.partition("/")[2], unused)
        settings = kubelet_settings(both.cgroup)
        cluster = await stack.enter_async_context(
            controlled(node, folder, authorization=authorization, **settings)
        )
        made = MixedCluster(cluster, both.delegate, settings)
        await made.plain_class()
        stack.push_async_callback(made.tidy)
        yield made


def kubelet_settings(cgroup: str) -> dict[str, Any]:
    """Settings of a kubelet that gives pods control groups: containerd needs the groups for figures."""
    return {"cgroupsPerQOS": True, "cgroupRoot": cgroup}


def _scheduled(found: Object) -> bool:
    return bool(found["status"].get("currentNumberScheduled") == 1)


def container_of(pod: Object) -> Object:
    """The status of the pod's only container."""
    (status,) = pod["status"]["containerStatuses"]
    return dict(status)


def conditioned(name: str, status: str) -> Callable[[Object], bool]:
    """A predicate: whether an object has a condition with this status."""

    def holds(found: Object) -> bool:
        conditions = found["status"].get("conditions") or ()
        return any((one["type"], one["status"]) == (name, status) for one in conditions)

    return holds
