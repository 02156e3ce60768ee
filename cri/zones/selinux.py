"""Refuses SELinux labels in zones with SELinux; in other zones labels have no effect."""

from __future__ import annotations

from cri.checks.security import labelled
from cri.zones.follow import HostInfo
from daemonkit.faults import Unsupported
from xenpod_proto.cri.v1 import runtime_pb2 as cri


async def refuse_labels(host: HostInfo, operation: str, name: str, options: cri.SELinuxOption) -> None:
    """Unsupported: the request has a label, and the zones' kernel enforces a policy.

    Only the fake's zones can have a policy, their host's.  crun could set labels, but no program labels their
    files.
    """
    if labelled(options) and (await host.info()).selinux:
        cause = "it has an SELinux label, and the zones of this host cannot be labelled"
        raise Unsupported(operation, name, cause, "leave out seLinuxOptions")
