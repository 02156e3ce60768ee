"""Applies objects to a real API server, and removes them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from tests.support.cluster.api import Api, Object
from tests.support.manifests import schemas

_PLURALS = {"RuntimeClass": "runtimeclasses", "DeviceClass": "deviceclasses"}


def collection(found: Object) -> str:
    """The path of the kind's objects."""
    kind = found["kind"].lower()
    plural = _PLURALS.get(found["kind"], f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s")
    root = "/api" if found["apiVersion"] == "v1" else "/apis"
    where = found["metadata"].get("namespace")
    scope = f"/namespaces/{where}" if where else ""
    return f"{root}/{found['apiVersion']}{scope}/{plural}"


async def apply(api: Api, objects: Sequence[Object], query: str = "") -> None:
    """Create objects. Unknown fields are refused, except in custom resources, which are not defined."""
    for one in objects:
        if schemas.group_of(one["apiVersion"]) not in schemas.CUSTOM:
            await api.post(f"{collection(one)}?fieldValidation=Strict{query}", one)


@contextlib.asynccontextmanager
async def applied(api: Api, objects: Sequence[Object]) -> AsyncIterator[None]:
    """Create objects for the duration of the block."""
    await apply(api, objects)
    try:
        yield
    finally:
        for one in reversed(objects):
            await api.delete(f"{collection(one)}/{one['metadata']['name']}")
