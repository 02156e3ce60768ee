"""The namespaces of a container.  Network and UTS belong to the zone, and thereby to the pod."""

from __future__ import annotations

from cri.oci.values import Json
from xenpod_proto.cri.v1 import runtime_pb2 as cri

USERS = "/run/xenpod/ns/user"
"""The path in a zone of a pod's user namespace."""


def namespaces(options: cri.NamespaceOption, target_pid: int = 0) -> list[Json]:
    """The namespaces of a container, own or joined.

    POD, CRI's default, and NODE mean the zone's own.  The kubelet asks for a CONTAINER process namespace
    unless a pod sets shareProcessNamespace.  ``target_pid``: a process in the zone; the container joins its
    process namespace.
    """
    made: list[Json] = [{"type": "mount"}, {"type": "cgroup"}]
    if options.userns_options.uids:
        made.append({"type": "user", "path": USERS})
    if options.ipc == cri.CONTAINER:
        made.append({"type": "ipc"})
    if options.pid == cri.CONTAINER:
        made.append({"type": "pid"})
    elif target_pid:
        made.append({"type": "pid", "path": f"/proc/{target_pid}/ns/pid"})
    return made


def sees_zone(options: cri.NamespaceOption, target_pid: int) -> bool:
    """Whether a user namespace sees the zone's processes.  If so, containers may not mount a new /proc."""
    return bool(options.userns_options.uids) and options.pid != cri.CONTAINER and not target_pid


def id_mappings(options: cri.NamespaceOption) -> Json:
    """The pod's checked id mappings, as members of ``linux``."""
    return {
        f"{kind}Mappings": [
            {"containerID": mapping.container_id, "hostID": mapping.host_id, "size": mapping.length}
            for mapping in mappings
        ]
        for kind, mappings in (("uid", options.userns_options.uids), ("gid", options.userns_options.gids))
        if mappings
    }
