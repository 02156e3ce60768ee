"""A cluster whose node has two runtimes: ordinary pods are containerd's, a RuntimeClass leads into zones."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localnode import images, layers, registry
from localnode.images import PushedImage
from localnode.layers import LayerEntry
from tests.support.cluster.api import PATIENCE, ApiRefused, Object
from tests.support.cluster.cgroups import control_group
from tests.support.cluster.cluster import CLASSES, PODS, Cluster, controlled, pod
from tests.support.cri.cri_daemons import IMAGE, CriNode
from tests.support.delegate.containerd import Containerd, Surroundings, containerd
from tests.support.delegate.mixed import PAUSE, ZONE, programs, push
from xenpod_proto.cri.v1 import runtime_pb2 as cri

DAEMONS = "/apis/apps/v1/namespaces/default/daemonsets"
UNUSED = "registry.test/unused:1"
NODE_MEMORY = 6 << 30
"""What all zones may have together."""


@dataclass
class MixedCluster:
    """The cluster, and the runtime behind ours."""

    cluster: Cluster
    delegate: Containerd
    cgroup: str

    @property
    def settings(self) -> dict[str, Any]:
        """Of its kubelets: containerd has figures of pods that have control groups of their own."""
        return {"cgroupsPerQOS": True, "cgroupRoot": self.cgroup}

    async def zone(self, name: str, *command: str, **spec: Any) -> None:
        """A pod in a zone; see :func:`tests.support.cluster.cluster.pod`."""
        await self.cluster.create(name, *command, runtimeClassName=ZONE, **spec)

    async def daemon_set(
        self, name: str, *command: str, container: Mapping[str, Any] | None = None, **spec: Any
    ) -> str:
        """A DaemonSet; the name of its pod, once that runs."""
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
        """What a web server in the pod answers, through a forwarded port."""
        client, stream = await self.cluster.api.forward(f"{PODS}/{name}", port)
        try:
            client.streams["data"] = stream
            await client.write("data", f"GET {path} HTTP/1.0\r\n\r\n".encode(), fin=True)
            await client.finished("data")
            return client.text("data").decode().partition("\r\n\r\n")[2].strip()
        finally:
            client.line.close()

    async def plain_class(self) -> None:
        """The RuntimeClass of zones is for any node, whatever it was."""
        with contextlib.suppress(ApiRefused):
            await self.cluster.api.delete(f"{CLASSES}/{ZONE}")
        await self.cluster.api.post(CLASSES, {"metadata": {"name": ZONE}, "handler": ZONE})

    async def pull_unused(self) -> None:
        """An image that no pod has, to both runtimes."""
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
        """Remove all DaemonSets, pods and what is left of them."""
        await self.cluster.api.delete(f"{DAEMONS}?propagationPolicy=Background")
        await self.cluster.tidy()


@contextlib.asynccontextmanager
async def mixed_cluster(folder: Path) -> AsyncIterator[MixedCluster]:
    """Start all of it; nothing is left at the end."""
    node = CriNode(folder / "n")
    delegate = containerd(folder / "d", Surroundings(PAUSE, node.certs, node.conf_dir, programs()))
    node.protectd.configure(memory={"total": NODE_MEMORY})
    node.configure(
        delegate={"endpoint": f"unix://{delegate.socket}", "default": "delegate"},
        handlers={ZONE: {"memory": 128 << 20}},
    )
    async with contextlib.AsyncExitStack() as stack:
        cgroup = stack.enter_context(control_group(folder))
        stack.push_async_callback(node.nothing_left)
        stack.push_async_callback(delegate.close)
        stack.push_async_callback(node.close)
        address = await stack.enter_async_context(registry.serve(folder / "registry"))
        push(address, folder)
        images.push(address, UNUSED.partition("/")[2], PushedImage([layers.layer(LayerEntry("unused"))]))
        registry.mirror(node.certs, IMAGE.partition("/")[0], address)
        await delegate.start()
        stack.push_async_callback(delegate.revive)
        await node.start()
        settings: dict[str, Any] = {"cgroupsPerQOS": True, "cgroupRoot": cgroup}
        cluster = await stack.enter_async_context(controlled(node, folder, **settings))
        made = MixedCluster(cluster, delegate, cgroup)
        await made.plain_class()
        stack.push_async_callback(made.tidy)
        yield made


def _scheduled(found: Object) -> bool:
    return bool(found["status"].get("currentNumberScheduled") == 1)


def container_of(pod: Object) -> Object:
    """The status of its only container."""
    (status,) = pod["status"]["containerStatuses"]
    return dict(status)


def conditioned(name: str, status: str) -> Callable[[Object], bool]:
    """Whether an object has a condition in that status."""

    def holds(found: Object) -> bool:
        conditions = found["status"].get("conditions") or ()
        return any((one["type"], one["status"]) == (name, status) for one in conditions)

    return holds
