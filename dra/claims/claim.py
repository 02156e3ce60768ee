"""Reads what the scheduler has allocated: a ResourceClaim of any served version, checked field by field.

Source: resource.k8s.io, ResourceClaim; the status is the same in v1, v1beta2 and v1beta1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from daemonkit.faults import Invalid, Missing, Refused
from dra.quantity import whole

PREPARE = "prepare claim"
MEMORY = "memory"
"""The capacity of a device that claims consume."""
_REQUESTS = 32  # resource.k8s.io, AllocationResultsMaxSize
_PODS = 256  # resource.k8s.io, ResourceClaimReservedForMaxSize


@dataclass(frozen=True, slots=True)
class Allocated:
    """A part of an allocation that is ours.  ``bytes``: 0 where a request has admin access."""

    request: str
    pool: str
    device: str
    share_id: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """A claim's devices of this driver, and the pods that it is reserved for."""

    uid: str
    parts: tuple[Allocated, ...]
    pod_uids: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Memory of all its parts, in bytes."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The claim that the kubelet names, and the driver and pool that its devices must be of."""

    namespace: str
    name: str
    uid: str
    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def allocation(wanted: Wanted, untrusted_claim: Mapping[str, Any]) -> Allocation:
    """What is allocated to this node.

    Missing: there is another claim of that name now.  Refused: it is not allocated, or not to this node.
    Invalid: its figures are none.
    """
    uid = _dict(untrusted_claim, "metadata").get("uid")
    if uid != wanted.uid:
        cause = f"the claim has another uid now, {str(uid)[:64]}"
        raise Missing(PREPARE, str(wanted), cause, "the kubelet asks for its pod's own claim")
    status = _dict(untrusted_claim, "status")
    if not isinstance(status.get("allocation"), dict):
        raise Refused(PREPARE, str(wanted), "it is not allocated", "the scheduler allocates it")
    parts = tuple(_parts(wanted, _dict(_dict(status, "allocation"), "devices")))
    if not parts:
        cause = f"nothing of driver {wanted.driver} is allocated to it"
        raise Refused(PREPARE, str(wanted), cause)
    return Allocation(wanted.uid, parts, tuple(_pods(status)))


def _parts(wanted: Wanted, devices: Mapping[str, Any]) -> Iterator[Allocated]:
    for result in _list(devices, "results", _REQUESTS):
        if result.get("driver") != wanted.driver:
            continue
        pool = str(result.get("pool"))
        if pool != wanted.pool:
            cause = f"its device is of pool {pool[:64]}, this node's is {wanted.pool}"
            raise Refused(PREPARE, str(wanted), cause, "delete the claim; the scheduler allocates it anew")
        yield Allocated(
            str(result.get("request", "")),
            pool,
            str(result.get("device", "")),
            str(result.get("shareID") or ""),
            0 if result.get("adminAccess") is True else _bytes(wanted, result),
        )


def _bytes(wanted: Wanted, result: Mapping[str, Any]) -> int:
    consumed = _dict(result, "consumedCapacity")
    if MEMORY not in consumed:
        cause = "the allocation does not say how much memory it consumes"
        hint = "the cluster needs the feature DRAConsumableCapacity in all of its components"
        raise Refused(PREPARE, str(wanted), cause, hint)
    try:
        size = whole(consumed[MEMORY])
    except ValueError as error:
        raise Invalid(PREPARE, str(wanted), f"consumedCapacity.{MEMORY}: {error}") from None
    if size <= 0:
        raise Invalid(PREPARE, str(wanted), f"consumedCapacity.{MEMORY} is {size}", "ask for at least 1")
    return size


def _pods(status: Mapping[str, Any]) -> Iterator[str]:
    for consumer in _list(status, "reservedFor", _PODS):
        if consumer.get("resource") == "pods" and not consumer.get("apiGroup"):
            yield str(consumer.get("uid", ""))


def _dict(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _list(value: Mapping[str, Any], key: str, most: int) -> list[Mapping[str, Any]]:
    found = value.get(key)
    return [one for one in found[:most] if isinstance(one, dict)] if isinstance(found, list) else []
