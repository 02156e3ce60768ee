"""Reads and checks protect.v1 requests for devices of the host."""

from __future__ import annotations

from collections.abc import Sequence

from daemonkit.faults import Invalid
from protect.model import checks
from protect.model.volume import DeviceRequest
from xenpod_proto.protect.v1 import protect_pb2 as pb


def names(operation: str, zone_id: str, asked: Sequence[str]) -> tuple[str, ...]:
    """Names of devices, each once."""
    checks.device_count(operation, zone_id, len(asked))
    return tuple(dict.fromkeys(checks.device_name(operation, name) for name in asked))


def devices(
    operation: str, workload_id: str, asked: Sequence[pb.WorkloadDevice]
) -> tuple[DeviceRequest, ...]:
    """Devices of a workload; none at the path of another."""
    checks.device_count(operation, workload_id, len(asked))
    checked: list[DeviceRequest] = []
    for one in asked:
        if bool(one.name) == bool(one.host_path):
            raise Invalid(operation, workload_id, "a device has either a name or a path of the host")
        made = DeviceRequest(
            name=checks.device_name(operation, one.name) if one.name else "",
            host_path=checks.path(operation, "device", one.host_path) if one.host_path else "",
            container_path=_node(operation, workload_id, one.container_path),
            readonly=one.readonly,
            uid=one.uid,
            gid=one.gid,
        )
        if made.container_path and any(made.container_path == other.container_path for other in checked):
            raise Invalid(operation, workload_id, f"two devices at {made.container_path}")
        checked.append(made)
    return tuple(checked)


def _node(operation: str, workload_id: str, path: str) -> str:
    if not path:
        return ""
    checked = checks.path(operation, "device in the container", path)
    if checked.endswith("/"):
        raise Invalid(
            operation, workload_id, f"device in the container {checked!r:.200}: it ends with a slash"
        )
    return checked
