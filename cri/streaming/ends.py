"""Ends the streams of a pod with the pod."""

from __future__ import annotations

from cri.state.records import Records
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.streaming.pods import Pods

_HAS_ZONE = frozenset({SandboxPhase.CREATING, SandboxPhase.READY, SandboxPhase.STOPPING})


def end_with_pods(sandboxes: Records[Sandbox], pods: Pods) -> None:
    """Let the streams of a pod end once its zone has ended.

    A port-forward has no process in the zone, and so no other end but its client's. A client whose frames are
    read slowly can be gone for half an hour before that is seen.
    """

    def note(before: Sandbox | None, after: Sandbox | None) -> None:
        if before is not None and (after is None or after.phase not in _HAS_ZONE):
            pods.end(before.id)

    sandboxes.observe(note)
