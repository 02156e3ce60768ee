"""Claims as the scheduler leaves them."""

from __future__ import annotations

from typing import Any

from tests.support.labels.api_server import NAME

DRIVER = "zones.xenpod.dev"
PARAMETERS = {"apiVersion": "xenpod.dev/v1alpha1", "kind": "ZoneResources"}


def allocated(
    name: str, uid: str, size: str, *pods: str, device: str = "memory", shared: bool = True
) -> dict[str, Any]:
    """A claim in the namespace ``default``, with ``size`` of a device of this node.

    ``pods``: the claim's reservations. ``shared``: several claims may have parts of the device, and the
    scheduler has noted this part; else the claim has the whole device, and the claim's configuration has the
    size.
    """
    result: dict[str, Any] = {
        "request": "zone",
        "driver": DRIVER,
        "pool": NAME,
        "device": device,
    }
    devices: dict[str, Any] = {"results": [result]}
    if shared:
        result |= {"shareID": f"share-{uid}", "consumedCapacity": {"memory": size}}
    else:
        parameters = PARAMETERS | {"memory": size}
        devices["config"] = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}]
    return {
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "status": {
            "allocation": {"devices": devices},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
        },
    }
