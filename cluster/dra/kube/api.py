"""The driver's objects of resource.k8s.io, in the version served by the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cluster.client.connection import TIMEOUT_SECONDS, Purpose, api_client
from cluster.dra import dra_metrics
from cluster.dra.slices.document import GROUP, Document, NodeSlice, SliceVersion, devices, document
from daemonkit.faults import Invalid, Missing, Unsupported

_SLICES, _CLAIMS = "resourceslices", "resourceclaims"
_RIGHTS = "it needs the rights that protect generate driver lists"


class ClusterApi:
    """The API server.  All methods raise the faults of ``cluster.client.connection.api_client``."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig
        self._version: SliceVersion | None = None

    async def version(self) -> SliceVersion:
        """The newest version known to both sides.  Unsupported: the cluster has none."""
        if self._version is None:
            from kubernetes_asyncio import client

            async with self._link("ask for versions of", GROUP) as link:
                try:
                    group = await client.ResourceApi(link).get_api_group(_request_timeout=TIMEOUT_SECONDS)
                except client.ApiException as error:
                    if error.status != 404:
                        raise
                    served: set[str] = set()
                else:
                    served = {one.version for one in group.versions or ()}
            found = next((version for version in SliceVersion if version.value in served), None)
            if found is None:
                known = ", ".join(sorted(served)) or "none"
                cause = f"the cluster serves {known}, and the driver needs v1beta1 or newer"
                raise Unsupported("use", GROUP, cause, "Kubernetes 1.32 with DynamicResourceAllocation")
            self._version = found
        return self._version

    async def shares_capacity(self, trial: NodeSlice) -> bool:
        """Whether several claims can consume a device's capacity here (DRAConsumableCapacity).

        The test is a dry-run creation: without the feature the API server drops the fields.
        """
        version = await self.version()
        body = document(trial, version)
        body["metadata"]["name"] += "-trial"
        async with self._objects("try slice", trial.name) as objects:
            answer = await objects.create_cluster_custom_object(
                GROUP, version.value, _SLICES, body, dry_run="All", _request_timeout=TIMEOUT_SECONDS
            )
        return any(device.get("allowMultipleAllocations") for device in devices(answer))

    async def node_uid(self, node: str) -> str:
        """The uid of the Node object, the slice's owner."""
        from kubernetes_asyncio import client

        async with self._link("read node", node) as link:
            found = await client.CoreV1Api(link).read_node(node, _request_timeout=TIMEOUT_SECONDS)
        return str(found.metadata.uid)

    async def slice(self, name: str) -> Document | None:
        """A ResourceSlice; None: no such slice."""
        version = await self.version()
        try:
            async with self._objects("read slice", name) as objects:
                return _plain(
                    await objects.get_cluster_custom_object(
                        GROUP, version.value, _SLICES, name, _request_timeout=TIMEOUT_SECONDS
                    )
                )
        except Missing:
            return None

    async def create(self, wanted: NodeSlice) -> Document:
        """Create the slice.  Exists: the slice exists already."""
        version = await self.version()
        async with self._objects("create slice", wanted.name) as objects:
            return _plain(
                await objects.create_cluster_custom_object(
                    GROUP, version.value, _SLICES, document(wanted, version), _request_timeout=TIMEOUT_SECONDS
                )
            )

    async def replace(self, wanted: NodeSlice, there: Document) -> Document:
        """Replace the slice as last read.  Exists: another client has changed the slice since."""
        version = await self.version()
        body = document(wanted, version)
        body["metadata"]["resourceVersion"] = there.get("metadata", {}).get("resourceVersion")
        async with self._objects("write slice", wanted.name) as objects:
            return _plain(
                await objects.replace_cluster_custom_object(
                    GROUP, version.value, _SLICES, wanted.name, body, _request_timeout=TIMEOUT_SECONDS
                )
            )

    async def claim(self, namespace: str, name: str) -> Document | None:
        """A ResourceClaim; None: no such claim.  Invalid: malformed JSON."""
        version = await self.version()
        subject = f"{namespace}/{name}"
        try:
            async with self._objects("read claim", subject) as objects:
                answer = await objects.get_namespaced_custom_object(
                    GROUP, version.value, namespace, _CLAIMS, name, _request_timeout=TIMEOUT_SECONDS
                )
        except Missing:
            return None
        if not isinstance(answer, dict):  # the client returns the text if Python does not read the JSON
            cause = "its JSON cannot be read: no object, or a number in it has thousands of digits"
            raise Invalid("read claim", subject, cause, "shorten its parameters")
        return _plain(answer)

    @asynccontextmanager
    async def _objects(self, operation: str, subject: str) -> AsyncIterator[Any]:
        from kubernetes_asyncio import client

        try:
            async with self._link(operation, subject) as link:
                yield client.CustomObjectsApi(link)
        except Missing:
            self._version = None  # perhaps an upgraded cluster no longer serves the version
            raise

    @asynccontextmanager
    async def _link(self, operation: str, subject: str) -> AsyncIterator[Any]:
        with dra_metrics.request(operation):
            async with api_client(self._kubeconfig, Purpose(operation, subject, _hint)) as link:
                yield link


def _hint(status: int) -> str:
    return _RIGHTS if status in (401, 403) else ""


def _plain(answer: Mapping[str, Any]) -> Document:
    return dict(answer)
