"""The ResourceSlice of this node, in each version served by clusters.

Sources: resource.k8s.io v1 (Kubernetes 1.34), v1beta2 (1.33), v1beta1 (1.32); KEP-5075 for capacity shared by
several claims.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.dra.claims.claim import MEMORY
from cluster.dra.config import ClaimSizes
from cluster.dra.model import HostDevice
from cluster.dra.slices.offer import MemoryDevice
from daemonkit.quantity import quantity_text

GROUP = "resource.k8s.io"
Document = dict[str, Any]
Attributes = Mapping[str, str | int | bool]
CLAIMED = "claimed"
"""The attribute of devices for one claim: whether a claim has the device."""
MAPPINGS = "nodeAllocatableResourceMappings"
"""The part of the node's own resources that a device takes (KEP-5517)."""
_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
"""The standard attribute of PCI devices (KEP-4381)."""
_LONGEST_TEXT = 64  # DeviceAttribute.string


class SliceVersion(enum.Enum):
    """Versions of the API, the newest first."""

    V1 = "v1"
    V1BETA2 = "v1beta2"
    V1BETA1 = "v1beta1"


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """The content of the slice.

    ``generation`` rises with each change of the devices.  ``attributes``: the host's, given to each device.
    ``unhealthy``: why the devices take no new claims; "": they take claims.
    """

    driver: str
    node: str
    node_uid: str
    generation: int
    devices: tuple[MemoryDevice, ...]
    sizes: ClaimSizes
    attributes: Attributes
    dom0_memory: int = 0
    """Bytes of the node's own memory that each claim of a device takes (KEP-5517)."""
    unhealthy: str = ""
    host_devices: tuple[HostDevice, ...] = ()

    @property
    def device_names(self) -> tuple[str, ...]:
        """Names of the memory devices, then of the host's devices."""
        memory = (device.name for device in self.devices)
        return (*memory, *(device.slice_name(self.node) for device in self.host_devices))

    @property
    def name(self) -> str:
        """One name for each node and driver: a restart cannot make a second slice."""
        return f"{self.node}-{self.driver}"


def document(slice_: NodeSlice, version: SliceVersion) -> Document:
    """The object to create."""
    # The same for up to 64 devices, made once.
    common = _attributes({**slice_.attributes, "kind": MEMORY})
    devices = [_device(slice_, device, common) for device in slice_.devices]
    devices += [_host_device(slice_, device) for device in slice_.host_devices]
    if version is SliceVersion.V1BETA1:
        devices = [{"name": device.pop("name"), "basic": device} for device in devices]
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
            "devices": devices,
        },
    }


def devices(found: Mapping[str, Any]) -> list[Document]:
    """The devices of a slice from the API server, in the form of v1."""
    spec = found.get("spec")
    listed = spec.get("devices") if isinstance(spec, dict) else None
    plain = []
    for device in listed if isinstance(listed, list) else []:
        if isinstance(device, dict):
            basic = device.get("basic")
            plain.append({"name": device.get("name"), **(basic if isinstance(basic, dict) else device)})
    return plain


def shared_device(found: Mapping[str, Any]) -> str:
    """The name of the device for several claims, from an object of the API server; "": none."""
    return next((str(one["name"]) for one in devices(found) if one.get("allowMultipleAllocations")), "")


def unclaimed_device(found: Mapping[str, Any]) -> str:
    """The name of the device for the next claim, from an object of the API server; "": none."""
    for one in devices(found):
        attributes = one.get("attributes")
        if isinstance(attributes, dict) and attributes.get(CLAIMED) == {"bool": False}:
            return str(one["name"])
    return ""


def generation(found: Mapping[str, Any]) -> int:
    """The generation of an object from the API server, or 0."""
    spec = found.get("spec")
    pool = spec.get("pool") if isinstance(spec, dict) else None
    value = pool.get("generation") if isinstance(pool, dict) else None
    return value if isinstance(value, int) else 0


def _device(slice_: NodeSlice, device: MemoryDevice, common: Document) -> Document:
    found: Document = {"name": device.name, **_taints(slice_)}
    capacity: Document = {"value": quantity_text(device.bytes)}
    if device.shared:
        capacity["requestPolicy"] = _policy(slice_.sizes, device.bytes)
        found["allowMultipleAllocations"] = True
    own = {} if device.shared else {CLAIMED: _attribute(device.claimed)}
    found["attributes"] = {**common, **own}
    found["capacity"] = {MEMORY: capacity}
    if slice_.dom0_memory:
        # A cluster without the feature drops the mapping.
        taken = {"allocationMultiplier": quantity_text(slice_.dom0_memory)}
        found[MAPPINGS] = {"memory": taken}
    return found


def _host_device(slice_: NodeSlice, device: HostDevice) -> Document:
    attributes: dict[str, str | int | bool] = {
        **slice_.attributes,
        "kind": "device",
        "device": device.name,
        "readonly": device.readonly,
    }
    if device.pci_address:
        attributes[_PCI_BUS_ID] = device.pci_address
    return {
        "name": device.slice_name(slice_.node),
        "attributes": _attributes(attributes),
        **_taints(slice_),
    }


def _taints(slice_: NodeSlice) -> Document:
    if not slice_.unhealthy:
        return {}
    key = f"{slice_.driver}/unhealthy"
    return {"taints": [{"key": key, "value": slice_.unhealthy, "effect": "NoSchedule"}]}


def _policy(sizes: ClaimSizes, claimable: int) -> Document:
    # The API wants the largest size to be a whole number of steps above the least.
    most = sizes.minimum + max(claimable - sizes.minimum, 0) // sizes.step * sizes.step
    return {
        "default": quantity_text(min(sizes.default, most)),
        "validRange": {
            "min": quantity_text(sizes.minimum),
            "max": quantity_text(most),
            "step": quantity_text(sizes.step),
        },
    }


def _attributes(values: Attributes) -> Document:
    return {name: _attribute(value) for name, value in sorted(values.items())}


def _attribute(value: str | int | bool) -> Document:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    return {"string": value[:_LONGEST_TEXT]}
