"""SELinux labels: without effect in a zone that has no SELinux, refused where they would have one."""

from __future__ import annotations

from cri.checks.security import labelled
from cri.zones.follow import HostInfo
from daemonkit.faults import Unsupported
from xenpod_proto.cri.v1 import runtime_pb2 as cri


async def refuse_labels(host: HostInfo, operation: str, name: str, options: cri.SELinuxOption) -> None:
    """Unsupported when a label is asked for and the kernel of zones has a policy that would need it.

    Only the fake's zones can have one, their host's.  crun could set labels, but nobody labels their files.
    """
    if labelled(options) and (await host.info()).selinux:
        cause = "it has an SELinux label, and the zones of this host cannot be labelled"
        raise Unsupported(operation, name, cause, "leave out seLinuxOptions")
