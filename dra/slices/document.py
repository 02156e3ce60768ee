"""The ResourceSlice of this node, in each version that clusters serve.

Sources: resource.k8s.io v1 (Kubernetes 1.34), v1beta2 (1.33), v1beta1 (1.32); KEP-5075 for capacity that
several claims consume.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dra.claims.claim import MEMORY
from dra.config import ClaimSizes
from dra.quantity import text

GROUP = "resource.k8s.io"
Document = dict[str, Any]
Attributes = Mapping[str, str | int | bool]
_LONGEST_TEXT = 64  # DeviceAttribute.string


class SliceVersion(enum.Enum):
    """Versions of the API, the newest first."""

    V1 = "v1"
    V1BETA2 = "v1beta2"
    V1BETA1 = "v1beta1"


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """What the slice says.

    ``generation`` rises with each change of the devices.  ``claimable``: bytes of memory that claims can have
    in all.  ``unhealthy``: why the device takes no new claims; "": it does.
    """

    driver: str
    node: str
    node_uid: str
    device: str
    generation: int
    claimable: int
    sizes: ClaimSizes
    attributes: Attributes
    unhealthy: str = ""

    @property
    def name(self) -> str:
        """One for each node and driver, so that no restart makes a second one."""
        return f"{self.node}-{self.driver}"


def document(slice_: NodeSlice, version: SliceVersion) -> Document:
    """The object to create."""
    device = _device(slice_)
    if version is SliceVersion.V1BETA1:
        device = {"name": device.pop("name"), "basic": device}
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": slice_.node,
        "uid": slice_.node_uid,
        "controller": True,
    }
    return {
        "apiVersion": f"{GROUP}/{version.value}",
        "kind": "ResourceSlice",
        "metadata": {"name": slice_.name, "ownerReferences": [owner]},
        "spec": {
            "driver": slice_.driver,
            "nodeName": slice_.node,
            "pool": {"name": slice_.node, "generation": slice_.generation, "resourceSliceCount": 1},
            "devices": [device],
        },
    }


def devices(found: Mapping[str, Any]) -> list[Document]:
    """The devices of an object that was read, as v1 has them."""
    spec = found.get("spec")
    listed = spec.get("devices") if isinstance(spec, dict) else None
    plain = []
    for device in listed if isinstance(listed, list) else []:
        if isinstance(device, dict):
            basic = device.get("basic")
            plain.append({"name": device.get("name"), **(basic if isinstance(basic, dict) else device)})
    return plain


def generation(found: Mapping[str, Any]) -> int:
    """The generation of an object that was read; 0 when it has none."""
    spec = found.get("spec")
    pool = spec.get("pool") if isinstance(spec, dict) else None
    value = pool.get("generation") if isinstance(pool, dict) else None
    return value if isinstance(value, int) else 0


def _device(slice_: NodeSlice) -> Document:
    sizes = slice_.sizes
    # The largest size is to be a number of steps above the least.
    most = sizes.minimum + max(slice_.claimable - sizes.minimum, 0) // sizes.step * sizes.step
    policy = {
        "default": text(min(sizes.default, most)),
        "validRange": {"min": text(sizes.minimum), "max": text(most), "step": text(sizes.step)},
    }
    found: Document = {
        "name": slice_.device,
        "attributes": {name: _attribute(value) for name, value in sorted(slice_.attributes.items())},
        "capacity": {MEMORY: {"value": text(slice_.claimable), "requestPolicy": policy}},
        "allowMultipleAllocations": True,
    }
    if slice_.unhealthy:
        key = f"{slice_.driver}/unhealthy"
        found["taints"] = [{"key": key, "value": slice_.unhealthy, "effect": "NoSchedule"}]
    return found


def _attribute(value: str | int | bool) -> Document:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    return {"string": value[:_LONGEST_TEXT]}
