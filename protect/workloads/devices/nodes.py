"""The device nodes of a container in its OCI configuration.

A container has its own node, with the disk's number in the zone, and may open no other device.  Two cases
show the zone's own node instead, and only root may open that node: a container with the zone's whole /dev,
because a new node would outlive the container; and a path outside /dev, because nodes there cannot be opened.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from daemonkit.faults import Invalid
from protect.model.volume import DeviceRequest, GuestDevice, ZoneDevice

_OPERATION = "create workload"
_MODE = 0o660


@dataclass(frozen=True, slots=True)
class Node:
    """A device in a container: the request, and the device in the zone."""

    request: DeviceRequest
    device: ZoneDevice
    seen: GuestDevice


def with_nodes(workload_id: str, config: bytes, nodes: Sequence[Node]) -> bytes:
    """The OCI configuration with the nodes.  Invalid: a user namespace, or an unexpected form."""
    if not nodes:
        return config
    oci = json.loads(config)
    try:
        linux = oci.setdefault("linux", {})
        if any(one["type"] == "user" for one in linux.get("namespaces", ())):
            cause = "it has a user namespace, whose root owns no device"
            raise Invalid(_OPERATION, workload_id, cause, "leave out the devices, or the user namespace")
        for node in nodes:
            if _has_zones_dev(oci) or not node.request.container_path.startswith("/dev/"):
                oci["mounts"].append(_mount(workload_id, node))
            else:
                linux.setdefault("devices", []).append(_made(node))
            linux.setdefault("resources", {}).setdefault("devices", []).append(_rule(node))
    except (AttributeError, KeyError, TypeError) as error:
        raise Invalid(_OPERATION, workload_id, f"its OCI configuration: {error!r:.200}") from None
    return json.dumps(oci).encode()


def _has_zones_dev(oci: dict[str, Any]) -> bool:
    return any(
        one["destination"] == "/dev" and one.get("type") == "bind" for one in oci.setdefault("mounts", [])
    )


def _mount(workload_id: str, node: Node) -> dict[str, Any]:
    if node.request.uid:
        cause = f"device {node.request.container_path}: here only root can open it, and it is for user"
        hint = "put it below /dev, in a container that is not privileged"
        raise Invalid(_OPERATION, workload_id, f"{cause} {node.request.uid}", hint)
    return {
        "destination": node.request.container_path,
        "type": "bind",
        "source": f"/dev/{node.device.vdev}",
        "options": ["bind", "rprivate", "nosuid", "noexec"],
    }


def _made(node: Node) -> dict[str, Any]:
    return {
        "path": node.request.container_path,
        "type": "b",
        "major": node.seen.major,
        "minor": node.seen.minor,
        "fileMode": stat.S_IFBLK | _MODE,
        "uid": node.request.uid,
        "gid": node.request.gid,
    }


def _rule(node: Node) -> dict[str, Any]:
    return {
        "allow": True,
        "type": "b",
        "major": node.seen.major,
        "minor": node.seen.minor,
        "access": "rm" if node.request.readonly or node.device.readonly else "rwm",
    }
