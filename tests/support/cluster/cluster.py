"""A cluster: a node with both daemons, a control plane, and a kubelet that can be replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.cluster.api import PATIENCE, Api, Object
from tests.support.cluster.control_plane import control_plane
from tests.support.cluster.programs import program
from tests.support.cri.cri_daemons import IMAGE, CriNode, pulled
from tests.support.cri.kubelet import Kubelet, kubelet
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
NODE_MEMORY = 3 << 30
"""Bytes of memory for all zones together."""
SMALL, SMALL_MEMORY = "small", 128 << 20
"""A runtime handler and its RuntimeClass, and the memory of zones of pods without limits."""
GROWING = "growing"
"""A runtime handler and its RuntimeClass, whose zones can grow."""

NODE = "localhost"
"""The name of the node."""


@dataclass
class Cluster:
    """A cluster of one node, which is Ready."""

    node: CriNode
    api: Api
    folder: Path
    kubeconfig: Path
    kubelet: Kubelet | None = None
    _running: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def use_kubelet(self, *, shipped: bool, wait: bool = True, **settings: object) -> Kubelet:
        """End the running kubelet, and start a kubelet with our shipped configuration, or without.

        ``wait``: until the kubelet takes pods. ``settings`` of KubeletConfiguration override the settings of
        all kubelets of tests.
        """
        await self._running.aclose()
        more = (f"--kubeconfig={self.kubeconfig}", f"--hostname-override={NODE}")
        own = program("kubelet")
        began = kubelet(self.node, self.folder, *more, shipped=shipped, program=own, settings=settings)
        self.kubelet = await self._running.enter_async_context(began)
        if wait:
            await self.api.until(NODES, f"metadata.name={NODE}", takes_pods)
        return self.kubelet

    async def create(self, name: str, *command: str, **spec: Any) -> None:
        """Create a pod; see ``pod``."""
        await self.api.post(PODS, pod(name, *command, **spec))

    async def until(self, name: str, what: Callable[[Object], bool], patience: float = PATIENCE) -> Object:
        """Wait until the pod satisfies the condition: the pod."""
        try:
            return await self.api.until(PODS, f"metadata.name={name}", what, patience)
        except AssertionError as error:
            raise AssertionError(f"{error}; events: {await self.events(name)}") from None

    async def ended(self, name: str) -> Object:
        """Wait for the container's end: ``terminated`` of its state, and the pod's ``phase``."""
        seen = await self.until(name, lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
        status: Object = seen["status"]["containerStatuses"][0]["state"]["terminated"]
        return status | {"phase": seen["status"]["phase"]}

    async def started(self, *names: str, patience: float = PATIENCE) -> list[Object]:
        """Wait until the containers of these pods run, ``patience`` seconds for each: the pods."""
        return [await self.until(name, _runs, patience) for name in names]

    async def log(self, name: str) -> str:
        return await self.api.text("GET", f"{PODS}/{name}/log")

    async def logged(self, name: str, what: Callable[[str], bool]) -> str:
        """Wait until the log of a running pod satisfies the condition: the log."""
        await self.started(name)
        said = ""

        async def satisfied() -> bool:
            nonlocal said
            said = await self.log(name)
            return what(said)

        await until(satisfied, PATIENCE, lambda: f"the log of {name}: {said[-2000:]!r}")
        return said

    async def exec(self, name: str, *command: str) -> str:
        """Run a command in a pod: its standard output. The command must succeed."""
        asked = "&".join(f"command={quote(word)}" for word in command)
        client = await self.api.websocket(f"{PODS}/{name}/exec?stdout=1&stderr=1&{asked}")
        try:
            await client.until(lambda: client.channel(3))
            status = json.loads(client.channel(3))
            assert status["status"] == "Success", (status, client.channel(2))
            return client.channel(1).decode()
        finally:
            client.line.close()

    async def events(self, name: str) -> list[str]:
        """The messages of the pod's events so far."""
        found = await self.api.get(f"{EVENTS}?fieldSelector=involvedObject.name={name}")
        return [event["message"] for event in found["items"]]

    async def event(self, name: str, text: str) -> str:
        """Wait for an event of the pod that has the text."""
        selector = f"involvedObject.name={name}"
        found = await self.api.until(EVENTS, selector, lambda event: text in event["message"])
        return str(found["message"])

    async def tidy(self) -> None:
        """Remove all jobs and pods; returns once none of their zones is left.

        Sandboxes stay on record until the kubelet's garbage collection comes by.
        """
        await self.api.delete(f"{JOBS}?propagationPolicy=Background")
        async with asyncio.timeout(PATIENCE):
            while (await self.api.get(PODS))["items"] or await self.zones():
                await self.api.delete(f"{PODS}?gracePeriodSeconds=1")
                await asyncio.sleep(0.1)

    async def zones(self) -> list[protect_pb2.Zone]:
        async with self.node.protectd.clients() as clients:
            return list((await clients.zones.ListZones(protect_pb2.ListZonesRequest())).zones)

    async def close(self) -> None:
        try:
            if self.kubelet is not None:
                await self.tidy()
        finally:
            await self._running.aclose()


def pod(
    name: str,
    *command: str,
    annotations: Mapping[str, str] | None = None,
    container: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Object:
    """Make a pod of one container, which is not restarted unless ``spec`` says otherwise."""
    main = {"name": "main", "image": IMAGE, "command": list(command), **(container or {})}
    base = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    metadata = {"name": name, "annotations": dict(annotations or {})}
    return {"metadata": metadata, "spec": {**base, **spec, "containers": [main]}}


@contextlib.asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    """Start the cluster, with the kubelet as we ship it; nothing is left at the end."""
    node = CriNode(folder / "n")
    node.protectd.configure(memory={"total": NODE_MEMORY})
    growing = {"memory_max": "700MiB", "vcpus_headroom": 2}
    node.configure(handlers={SMALL: {"memory": SMALL_MEMORY}, GROWING: growing})
    await node.start()
    try:
        async with pulled(node, folder / "registry"), controlled(node, folder) as made:
            for name in (SMALL, GROWING):
                await made.api.post(CLASSES, {"metadata": {"name": name}, "handler": name})
            yield made
    finally:
        await node.close()
    await node.nothing_left()


@contextlib.asynccontextmanager
async def controlled(
    node: CriNode, folder: Path, *, authorization: str = "AlwaysAllow", **settings: Any
) -> AsyncIterator[Cluster]:
    """Start a control plane, and a kubelet with ``settings`` on a running node."""
    async with control_plane(folder / "control", authorization=authorization) as (api, kubeconfig):
        made = Cluster(node, api, node.folder / "kubelet", kubeconfig)
        try:
            await made.use_kubelet(shipped=True, **settings)
            yield made
        finally:
            await made.close()


def takes_pods(node: Object) -> bool:
    """Whether a node is ready, without a taint."""
    conditions = node["status"].get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not node["spec"].get("taints")


def _runs(pod: Object) -> bool:
    return any("running" in one["state"] for one in pod["status"].get("containerStatuses") or ())
