"""User namespaces: what CRI allows to ask for, and that zones do not have them."""

from __future__ import annotations

from collections.abc import Iterable

from daemonkit.faults import Invalid, Unsupported
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_IDS = 2**32


def check_userns(operation: str, name: str, options: cri.NamespaceOption) -> None:
    """CRI: NODE without mappings, or POD with exactly one mapping of container id 0, the same for users and
    groups.  Invalid for anything else; Unsupported for POD: the image's filesystem (squashfs) can be mounted
    with mapped ids by no kernel before 6.2, and zones run older ones.
    """
    if not options.HasField("userns_options"):
        return
    asked = options.userns_options
    if asked.mode == cri.NODE:
        if asked.uids or asked.gids:
            raise Invalid(operation, name, "user namespace mode NODE with id mappings")
        return
    if asked.mode != cri.POD:
        raise Invalid(operation, name, "user namespace mode: neither POD nor NODE")
    users, groups = (
        _mapping(operation, name, "uids", asked.uids),
        _mapping(operation, name, "gids", asked.gids),
    )
    if users != groups:
        raise Invalid(operation, name, "user namespace: uids and gids are mapped differently")
    raise Unsupported(operation, name, "user namespaces are not there", "leave out hostUsers: false")


def _mapping(operation: str, name: str, kind: str, mappings: Iterable[cri.IDMapping]) -> tuple[int, int]:
    """Host id and length."""
    found = [(mapping.container_id, mapping.host_id, mapping.length) for mapping in mappings]
    if len(found) != 1:
        raise Invalid(operation, name, f"user namespace: {len(found)} mappings of {kind}, not one")
    first, host, length = found[0]
    if first != 0:
        raise Invalid(operation, name, f"user namespace: {kind} do not map 0")
    if length == 0 or host + length > _IDS:
        raise Invalid(operation, name, f"user namespace: {kind} map {length} ids from {host}")
    return host, length
