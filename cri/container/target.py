"""The container whose processes another one sees (process namespace mode TARGET)."""

from __future__ import annotations

from cri.checks.fields import CREATE
from cri.runtime import Runtime
from cri.state.container import Container, ContainerPhase
from daemonkit.faults import Invalid, Refused
from xenpod_proto.cri.v1 import runtime_pb2 as cri


async def target_pid(runtime: Runtime, sandbox_id: str, options: cri.NamespaceOption) -> int:
    """A process of the target, in the zone; 0 when the zone's own process namespace is meant.

    Missing, Invalid or Refused for a target that is not there, not of this pod, or does not run.
    """
    if options.pid != cri.TARGET:
        return 0
    target = runtime.containers.find(options.target_id)
    if target.sandbox_id != sandbox_id:
        raise Invalid(CREATE, f"target container {target.id}", "it is of another pod")
    if target.phase is not ContainerPhase.RUNNING:
        raise Refused(CREATE, f"target container {target.id}", f"it is {target.phase.value}")
    if _mode(target) in (cri.POD, cri.NODE):
        return 0
    pid = (await runtime.zones.get_workload(target.id)).pid
    if pid < 2:
        raise Refused(CREATE, f"target container {target.id}", "it has ended")
    return pid


def _mode(container: Container) -> cri.NamespaceMode.ValueType:
    return container.config.linux.security_context.namespace_options.pid
