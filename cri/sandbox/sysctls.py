"""Kernel parameters of a pod: its own, and the defaults of containerd 2."""

from __future__ import annotations

from collections.abc import Mapping

from cri.sandbox.pod_plan import id_mapping
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_PORTS, _PING = "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"
_LAST_GROUP = 2**31 - 1
"""The kernel takes no higher group in ping_group_range."""


def sysctls(config: cri.PodSandboxConfig) -> Mapping[str, str]:
    """The pod's parameters; unless the pod sets them, all users may bind low ports, and all groups ping.

    The agent writes them outside of the pod's user namespace: group ids are the zone's.
    """
    defaults = {_PORTS: "0"}
    mapping = id_mapping(config)
    first = mapping.host_id if mapping else 0
    last = min(_LAST_GROUP, mapping.host_id + mapping.length - 1) if mapping else _LAST_GROUP
    if first <= last:
        defaults[_PING] = f"{first} {last}"
    return defaults | dict(config.linux.sysctls)
