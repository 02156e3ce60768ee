"""``linux.resources``: a container's limits within its zone."""

from __future__ import annotations

from cri.checks.cpu import check_cpu, clamped
from cri.checks.fields import CREATE
from cri.oci.values import Json
from daemonkit.faults import Invalid, Unsupported
from xenpod_proto.cri.v1 import runtime_pb2 as cri


def resources(asked: cri.LinuxContainerResources, pids_limit: int, *, privileged: bool = False) -> Json:
    """The requested limits; 0 means none throughout CRI.  Privileged containers get the zone's devices."""
    made: dict[str, object] = {
        # The runtime adds the usual /dev/null, zero, full, random, urandom, tty, ptmx and pts itself.
        "devices": [{"allow": privileged, "access": "rwm"}],
    }
    if cpu := _cpu(asked):
        made["cpu"] = cpu
    if memory := _memory(asked):
        made["memory"] = memory
    if pids_limit:
        made["pids"] = {"limit": pids_limit}
    if asked.unified:
        made["unified"] = dict(asked.unified)
    for page in asked.hugepage_limits:
        if page.limit:
            raise Unsupported(CREATE, f"hugepages of {page.page_size!r:.20}", "zones have no huge pages yet")
    return made


def _cpu(asked: cri.LinuxContainerResources) -> Json:
    cpu: dict[str, object] = {}
    check_cpu(CREATE, asked)
    if asked.cpu_shares:
        cpu["shares"] = clamped(asked.cpu_shares)
    # A negative quota (the kubelet's, for exclusive CPUs) means no limit, like no quota.  If control groups
    # are version 1, crun 1.8 would write the quota as a number out of range.
    if asked.cpu_quota > 0:
        cpu["quota"] = asked.cpu_quota
    if asked.cpu_period:
        cpu["period"] = asked.cpu_period
    if asked.cpuset_cpus:
        cpu["cpus"] = asked.cpuset_cpus
    if asked.cpuset_mems:
        cpu["mems"] = asked.cpuset_mems
    return cpu


def _memory(asked: cri.LinuxContainerResources) -> Json:
    if asked.memory_limit_in_bytes < 0 or asked.memory_swap_limit_in_bytes < 0:
        raise Invalid(CREATE, "memory limit", "negative")
    memory: dict[str, object] = {}
    if asked.memory_limit_in_bytes:
        memory["limit"] = asked.memory_limit_in_bytes
    if asked.memory_swap_limit_in_bytes:
        memory["swap"] = asked.memory_swap_limit_in_bytes
    return memory
