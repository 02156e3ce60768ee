"""The end of a pod's record: RemovePodSandbox, and the undo of a pod that never became ready."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from cri.checks.fields import RUN
from cri.container.remove import RemoveContainer
from cri.sandbox.stop import StopSandbox
from cri.state.names import sandbox_name
from cri.state.pod_records import PodRecords
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.state.unfinished import Unfinished
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exists, Fault
from daemonkit.logs import fields
from daemonkit.tasks import complete, complete_all
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

_WITHOUT_ZONE = frozenset({SandboxPhase.DEAD, SandboxPhase.STOPPED, SandboxPhase.REMOVING})


@dataclass(frozen=True, slots=True)
class RemoveSandbox:
    """Removes pods, whole or half-made."""

    records: PodRecords
    unfinished: Unfinished
    stop_sandbox: StopSandbox
    remove_container: RemoveContainer

    async def remove(self, wanted: str) -> None:
        """Stop a pod if needed, then forget the pod and its containers, even if the caller is cancelled.

        Idempotent; an unknown id succeeds.
        """
        found = self.records.sandboxes.find_or_none(wanted)
        if found is None:
            return
        async with self.records.locks.hold(found.id):
            if self.records.sandboxes.has(found.id):
                await complete(self._remove(self.records.sandboxes.get(found.id)))

    async def _remove(self, sandbox: Sandbox) -> None:
        await self.stop_sandbox.stop_locked(sandbox)
        await self.records.sandboxes.put(
            replace(self.records.sandboxes.get(sandbox.id), phase=SandboxPhase.REMOVING)
        )
        checkpoint("remove-pod.recorded")
        await complete_all(
            [self.remove_container.remove_by_id(c.id) for c in self.records.containers_of(sandbox.id)]
        )
        checkpoint("remove-pod.containers-removed")
        await self.records.sandboxes.drop(sandbox.id)
        checkpoint("remove-pod.forgotten")
        self.records.sandbox_names.release(sandbox_name(sandbox.config.metadata), sandbox.id)
        log.info("pod removed", extra=fields(sandbox=sandbox.id))

    async def undo(self, sandbox_id: str) -> bool:
        """Remove a pod that never became ready; returns whether everything is gone.

        Remainders stay recorded, and reconciliation tries again.
        """
        async with self.records.locks.hold(sandbox_id):
            if not self.records.sandboxes.has(sandbox_id):
                return True
            try:
                await self._undo(self.records.sandboxes.get(sandbox_id))
            except Fault as fault:
                self.unfinished.left_over("pod", sandbox_id, fault)
                return False
        return True

    async def finish_other_attempts(self, metadata: cri.PodSandboxMetadata) -> None:
        """Finish the undo of all earlier attempts at a pod.

        The next attempt needs the reservation and the devices.  Waits for a stop in flight.
        Exists: an attempt lives.
        """
        for other in self._attempts(metadata):
            if other.phase is SandboxPhase.UNDOING:
                await self.undo(other.id)
            elif other.phase is SandboxPhase.STOPPING:
                async with self.records.locks.hold(other.id):
                    log.info("the stop of an attempt has ended", extra=fields(sandbox=other.id))
        # Also a sandbox whose undo or stop has failed.
        for other in self._attempts(metadata):
            cause = f"attempt {other.config.metadata.attempt}, sandbox {other.id}, is {other.phase.value}"
            raise Exists(RUN, metadata.name, cause, "stop that one first")

    def _attempts(self, metadata: cri.PodSandboxMetadata) -> list[Sandbox]:
        """Sandboxes of the pod that may have a zone."""
        return [
            one
            for one in self.records.sandboxes.all()
            if one.phase not in _WITHOUT_ZONE and pod_key(one.config.metadata) == pod_key(metadata)
        ]

    async def _undo(self, sandbox: Sandbox) -> None:
        if sandbox.phase is SandboxPhase.CREATING:
            await self.records.sandboxes.note(replace(sandbox, phase=SandboxPhase.UNDOING))
        await self.stop_sandbox.teardown(sandbox)
        checkpoint("undo-pod.torn-down")
        await self.records.sandboxes.drop(sandbox.id)
        checkpoint("undo-pod.forgotten")
        self.records.sandbox_names.release(sandbox_name(sandbox.config.metadata), sandbox.id)


def pod_key(metadata: cri.PodSandboxMetadata) -> str:
    """The name of the lock under which attempts at a pod begin."""
    return f"pod {metadata.namespace}/{metadata.name}/{metadata.uid}"
