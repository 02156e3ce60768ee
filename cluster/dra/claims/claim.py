"""Reads the scheduler's allocation: a ResourceClaim of any served version, checked field by field.

Source: resource.k8s.io, ResourceClaim; the status is the same in v1, v1beta2 and v1beta1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.dra.claims.parameters import ClaimParameters
from cluster.dra.config import ClaimSizes
from cluster.dra.model import HOST_DEVICE
from daemonkit.faults import Invalid, Missing, Refused
from daemonkit.quantity import LARGEST, whole

PREPARE = "prepare claim"
MEMORY = "memory"
"""A device's capacity, consumed by claims."""
_REQUESTS = 32  # resource.k8s.io, AllocationResultsMaxSize
_PODS = 256  # resource.k8s.io, ResourceClaimReservedForMaxSize
_CONFIGS = 64  # resource.k8s.io, DeviceConfigMaxSize, of the claim and of its class


@dataclass(frozen=True, slots=True)
class Allocated:
    """A device of this driver in an allocation.

    ``bytes``: its memory; 0 for admin access and for devices of the host.  ``host_device``: the device's name
    in protectd's configuration, if the claim gets a device of the host.
    """

    request: str
    pool: str
    device: str
    share_id: str
    bytes: int
    host_device: str = ""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A pod with a reservation for a claim."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices of a claim, and the pods that reserved the claim.

    ``device``: the source of the memory; "": the claim has no memory.
    """

    uid: str
    parts: tuple[Allocated, ...]
    pod_uids: tuple[str, ...]
    device: str = ""

    @property
    def host_devices(self) -> tuple[str, ...]:
        """Names of devices of the host."""
        return tuple(part.host_device for part in self.parts if part.host_device)

    @property
    def total_bytes(self) -> int:
        """Memory of all parts, in bytes."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """The kubelet's claim, and the required driver and pool of its devices.

    ``sizes``: bounds of its size, if the scheduler does not count the claims' use.  ``host_devices``: by name
    in the slice, the devices' names in protectd's configuration.
    """

    namespace: str
    name: str
    uid: str
    driver: str
    pool: str
    sizes: ClaimSizes
    host_devices: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def allocation(wanted: WantedClaim, untrusted_claim: Mapping[str, Any]) -> Allocation:
    """The claim's allocation on this node.

    Missing: a newer claim has the same name. Refused: the claim is not allocated, or not to this node.
    Invalid: the sizes make no sense.
    """
    uid = _dict(untrusted_claim, "metadata").get("uid")
    if uid != wanted.uid:
        cause = f"the claim has another uid now, {_text(uid)[:64]}"
        raise Missing(PREPARE, str(wanted), cause, "the kubelet asks for its pod's own claim")
    status = _dict(untrusted_claim, "status")
    if not isinstance(status.get("allocation"), dict):
        raise Refused(PREPARE, str(wanted), "it is not allocated", "the scheduler allocates it")
    devices = _dict(_dict(status, "allocation"), "devices")
    parameters = ClaimParameters(str(wanted), wanted.driver, _list(devices, "config", _CONFIGS))
    parts = tuple(_parts(wanted, devices, parameters))
    if not parts:
        cause = f"nothing of driver {wanted.driver} is allocated to it"
        raise Refused(PREPARE, str(wanted), cause)
    if (total := sum(part.bytes for part in parts)) > LARGEST:
        raise Invalid(PREPARE, str(wanted), f"its {total} bytes are out of range", "ask for less memory")
    names = sorted({part.device for part in parts if part.bytes})
    if len(names) > 1:
        cause = f"it has memory of {len(names)} devices, {', '.join(names)}"
        raise Refused(PREPARE, str(wanted), cause[:300], "delete the claim; the scheduler allocates it anew")
    pod_uids = tuple(pod.uid for pod in consumers(untrusted_claim))
    return Allocation(wanted.uid, parts, pod_uids, "".join(names))


def devices_of(wanted: WantedClaim, untrusted_claim: Mapping[str, Any]) -> Iterator[str]:
    """The devices of this node in the claim, even if the rest of the claim is wrong."""
    if _dict(untrusted_claim, "metadata").get("uid") != wanted.uid:
        return
    devices = _dict(_dict(_dict(untrusted_claim, "status"), "allocation"), "devices")
    for result in _list(devices, "results", _REQUESTS):
        ours = (result.get("driver"), result.get("pool")) == (wanted.driver, wanted.pool)
        if ours and result.get("adminAccess") is not True:
            yield _text(result.get("device"))


def consumers(untrusted_claim: Mapping[str, Any]) -> Iterator[Consumer]:
    """The pods that reserved a claim."""
    for consumer in _list(_dict(untrusted_claim, "status"), "reservedFor", _PODS):
        if consumer.get("resource") == "pods" and not consumer.get("apiGroup"):
            yield Consumer(_text(consumer.get("name")), _text(consumer.get("uid")))


def _parts(
    wanted: WantedClaim, devices: Mapping[str, Any], parameters: ClaimParameters
) -> Iterator[Allocated]:
    for result in _list(devices, "results", _REQUESTS):
        if result.get("driver") != wanted.driver:
            continue
        pool = _text(result.get("pool"))
        if pool != wanted.pool:
            cause = f"its device is of pool {pool[:64]}, this node's is {wanted.pool}"
            raise Refused(PREPARE, str(wanted), cause, "delete the claim; the scheduler allocates it anew")
        device, admin = _text(result.get("device")), result.get("adminAccess") is True
        of_host = device.startswith(HOST_DEVICE)
        yield Allocated(
            _text(result.get("request")),
            pool,
            device,
            _text(result.get("shareID")),
            0 if admin or of_host else _bytes(wanted, result, parameters),
            _host_device(wanted, device) if of_host and not admin else "",
        )


def _host_device(wanted: WantedClaim, device: str) -> str:
    try:
        return wanted.host_devices[device]
    except KeyError:
        hint = "[host.devices] of protectd.toml has the devices; delete the claim, and it is allocated anew"
        raise Refused(PREPARE, str(wanted), f"this host has no device {device[:64]} now", hint) from None


def _bytes(wanted: WantedClaim, result: Mapping[str, Any], parameters: ClaimParameters) -> int:
    """The size counted by the scheduler.  Without a counted size, the device belongs to this claim, and the
    claim's parameters set the used part.
    """
    asked = parameters.memory(_text(result.get("request")))
    consumed = _dict(result, "consumedCapacity")
    if MEMORY not in consumed:
        return wanted.sizes.rounded(wanted.sizes.default if asked is None else asked)
    try:
        size = whole(consumed[MEMORY])
    except ValueError as error:
        raise Invalid(PREPARE, str(wanted), f"consumedCapacity.{MEMORY}: {error}") from None
    if size <= 0:
        raise Invalid(PREPARE, str(wanted), f"consumedCapacity.{MEMORY} is {size}", "ask for at least 1")
    if asked is not None and asked > size:
        cause = f"its parameters ask for {asked} bytes, the scheduler has counted {size}"
        raise Refused(PREPARE, str(wanted), cause, "ask for the same in capacity.requests.memory")
    return size


def _dict(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    """Text for a message; "": not text."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def _list(value: Mapping[str, Any], key: str, most: int) -> list[Mapping[str, Any]]:
    found = value.get(key)
    return [one for one in found[:most] if isinstance(one, dict)] if isinstance(found, list) else []
