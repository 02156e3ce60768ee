"""The namespaces of a container.  Network and UTS are the zone's own, which is the pod's."""

from __future__ import annotations

from cri.oci.values import Json
from xenpod_proto.cri.v1 import runtime_pb2 as cri


def namespaces(options: cri.NamespaceOption, target_pid: int = 0) -> list[Json]:
    """POD, CRI's default, and NODE mean the zone's own; the kubelet asks for a CONTAINER process namespace
    unless a pod says shareProcessNamespace.

    ``target_pid``: of a process, in the zone, whose process namespace is joined.
    """
    made: list[Json] = [{"type": "mount"}, {"type": "cgroup"}]
    if options.ipc == cri.CONTAINER:
        made.append({"type": "ipc"})
    if options.pid == cri.CONTAINER:
        made.append({"type": "pid"})
    elif target_pid:
        made.append({"type": "pid", "path": f"/proc/{target_pid}/ns/pid"})
    return made
