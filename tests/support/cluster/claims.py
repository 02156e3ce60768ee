"""xenpod-dra on the node of a cluster, and pods with claims of zone memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.dra.slices.document import devices
from daemonkit.quantity import whole
from tests.support.cluster.api import PATIENCE
from tests.support.cluster.cluster import NODE, Cluster
from tests.support.protect.daemons import Daemon
from tests.support.waiting import until
from tools.localnode import toml
from xenpod_proto.protect.v1 import reservations_pb2

DRIVER = "zones.xenpod.dev"
CLASS = "zone-memory"
DEVICE_CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
RETRIED = 420.0
"""Seconds to wait for the pods that fill a node.

For a moment after the allocation of a claim, the scheduler counts the claim twice: as stored, and as in
flight (GatherAllocatedState in 1.36). Of many pods at once the scheduler may refuse the last pod, and tries a
refused pod again after five minutes.
"""


@dataclass
class Driver:
    """The driver of the cluster's node."""

    cluster: Cluster
    daemon: Daemon

    def configure(self, **more: object) -> None:
        """Write the settings again; the next start reads them."""
        self.daemon.config.write_text(toml.dumps({**_settings(self.cluster), **more}))

    async def reservations(self) -> dict[str, reservations_pb2.Reservation]:
        async with self.cluster.node.protectd.clients() as clients:
            answer = await clients.reservations.ListReservations(reservations_pb2.ListReservationsRequest())
        return {one.id: one for one in answer.reservations}

    async def claims(self) -> dict[str, Any]:
        """The claims of the default namespace, by uid."""
        return {one["metadata"]["uid"]: one for one in (await self.cluster.api.get(CLAIMS))["items"]}

    async def agree(self) -> None:
        """Wait until each claim that pods have is reserved, and nothing else is."""
        wanted, found = set[str](), set[str]()

        async def equal() -> bool:
            nonlocal wanted, found
            claims, found = await self.claims(), set(await self.reservations())
            wanted = {uid for uid, one in claims.items() if one.get("status", {}).get("reservedFor")}
            return wanted == found

        await until(equal, PATIENCE, lambda: f"pods have the claims {wanted}, reserved are {found}")

    async def has_no_reservation(self) -> bool:
        return not await self.reservations()

    async def published(self, size: int) -> None:
        """Wait until the slice offers this many bytes for all claims together."""
        found = -1

        async def offered() -> bool:
            nonlocal found
            (device,) = devices(await self.slice())
            found = whole(device["capacity"]["memory"]["value"])
            return found == size

        await until(offered, PATIENCE, lambda: f"the slice says {found}, not {size}")

    async def slice(self) -> Any:
        (only,) = await self.slices()
        return only

    async def slices(self) -> list[Any]:
        found = await self.cluster.api.get(f"{SLICES}?fieldSelector=spec.driver={DRIVER}")
        return list(found["items"])


@contextlib.asynccontextmanager
async def driving(cluster: Cluster, **more: object) -> AsyncIterator[Driver]:
    """Run the driver while the block runs, known to the kubelet, with a class for the devices.

    ``more``: further settings of the driver.
    """
    made = instance(cluster, **more)
    kind = f'device.attributes["{DRIVER}"].kind == "memory"'
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}" && {kind}'}}
    await cluster.api.post(DEVICE_CLASSES, {"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}})
    try:
        await made.daemon.start()
        await cluster.api.until(SLICES, f"spec.driver={DRIVER}", lambda _: True)
        yield made
    finally:
        await made.daemon.stop()
        await cluster.api.delete(f"{DEVICE_CLASSES}/{CLASS}")
        await cluster.api.delete(f"{SLICES}?fieldSelector=spec.driver={DRIVER}")


def instance(cluster: Cluster, name: str = "", /, **more: object) -> Driver:
    """The driver, not started; another one on the same node by another name."""
    at = f"-{name}" if name else ""
    daemon = Daemon(
        "cluster.dra",
        cluster.folder / f"dra{at}.toml",
        cluster.folder / "root" / "plugins" / DRIVER / f"dra{at}.sock",
        cluster.folder / f"dra{at}.log",
    )
    made = Driver(cluster, daemon)
    made.configure(instance=name, **more)
    return made


def _settings(cluster: Cluster) -> Mapping[str, object]:
    root = cluster.folder / "root"
    return {
        "node": NODE,
        "kubeconfig": str(cluster.kubeconfig),
        "protect_socket": str(cluster.node.protectd.daemon.socket),
        "plugins_dir": str(root / "plugins"),
        "registry_dir": str(root / "plugins_registry"),
        "write_interval": "200ms",
    }


def request(size: str, name: str = "zone", **more: object) -> dict[str, object]:
    """A request of a claim for this much memory."""
    exactly = {"deviceClassName": CLASS, "capacity": {"requests": {"memory": size}}, **more}
    return {"name": name, "exactly": exactly}


def claim(name: str, *requests: Mapping[str, object]) -> dict[str, object]:
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests)}}}


def template(name: str, *requests: Mapping[str, object]) -> dict[str, object]:
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": list(requests)}}}}


async def unscheduled(cluster: Cluster, name: str) -> str:
    """Why the scheduler does not place the pod."""
    seen = await cluster.until(name, lambda pod: bool(_reason(pod)))
    return _reason(seen)


def _reason(pod: Any) -> str:
    conditions = pod["status"].get("conditions") or ()
    (text,) = [
        one.get("message", "")
        for one in conditions
        if one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable"
    ] or [""]
    return str(text)
