"""Checks of user namespaces.

All containers of a pod share one user namespace.  The namespace maps to ids of the zone: within the virtual
machine it is a second wall.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_IDS = 2**32 - 1
"""Number of valid ids: the last of 32 bits stands for none (user_namespaces(7))."""


@dataclass(frozen=True, slots=True)
class PodIdMapping:
    """Maps users and groups 0 to ``length`` - 1 to the zone's ``host_id`` and up."""

    host_id: int
    length: int


def pod_userns(operation: str, name: str, options: cri.NamespaceOption) -> PodIdMapping | None:
    """The mapping of a pod's user namespace; None: the pod has none.

    CRI allows NODE without mappings, meaning none, and POD with exactly one mapping of container id 0, the
    same for users and groups.  Invalid for anything else.
    """
    if not options.HasField("userns_options"):
        return None
    asked = options.userns_options
    if asked.mode == cri.NODE:
        if asked.uids or asked.gids:
            raise Invalid(operation, name, "user namespace mode NODE with id mappings")
        return None
    if asked.mode != cri.POD:
        raise Invalid(operation, name, "user namespace mode: neither POD nor NODE")
    users, groups = (
        _mapping(operation, name, "uids", asked.uids),
        _mapping(operation, name, "gids", asked.gids),
    )
    if users != groups:
        raise Invalid(operation, name, "user namespace: uids and gids are mapped differently")
    return users


def container_userns(
    operation: str, name: str, options: cri.NamespaceOption, pod: cri.NamespaceOption
) -> PodIdMapping | None:
    """The mapping of a container's user namespace; Invalid if its pod has another mapping."""
    mine = pod_userns(operation, name, options)
    if mine != pod_userns(operation, name, pod):
        raise Invalid(operation, name, "its user namespace is not that of its pod sandbox")
    return mine


def check_mapped(operation: str, name: str, ids: Iterable[int], pod: PodIdMapping | None) -> None:
    """Invalid: a uid or gid is outside the pod's user namespace."""
    for number in ids:
        if pod is not None and number >= pod.length:
            cause = f"id {number} is not in its pod's user namespace, which has ids 0 to {pod.length - 1}"
            raise Invalid(operation, name, cause, "choose a lower id, or a pod without a user namespace")


def volume_is_mapped(operation: str, subject: str, mount: cri.Mount, pod: PodIdMapping | None) -> bool:
    """Whether a mount has its pod's id mapping; Invalid for any other mapping."""
    if not mount.uidMappings and not mount.gidMappings:
        return False
    if pod is None:
        raise Invalid(operation, subject, "it has id mappings, and its container no user namespace")
    users, groups = (
        _mapping(operation, subject, "uidMappings", mount.uidMappings),
        _mapping(operation, subject, "gidMappings", mount.gidMappings),
    )
    if users != pod or groups != pod:
        raise Invalid(operation, subject, "its id mappings are not those of its pod sandbox")
    return True


def _mapping(operation: str, name: str, kind: str, mappings: Iterable[cri.IDMapping]) -> PodIdMapping:
    found = [(mapping.container_id, mapping.host_id, mapping.length) for mapping in mappings]
    if len(found) != 1:
        raise Invalid(operation, name, f"user namespace: {len(found)} mappings of {kind}, not one")
    first, host, length = found[0]
    if first != 0:
        raise Invalid(operation, name, f"user namespace: {kind} do not map 0")
    if length == 0 or host + length > _IDS:
        raise Invalid(operation, name, f"user namespace: {kind} map {length} ids from {host}")
    return PodIdMapping(host, length)
