"""Ends the streams of a pod with the pod."""

from __future__ import annotations

from cri.state.records import Records
from cri.state.sandbox import HAS_ZONE, Sandbox
from cri.streaming.pods import Pods


def end_with_pods(sandboxes: Records[Sandbox], pods: Pods) -> None:
    """Let the streams of a pod end once its zone has ended.

    An exec ends with its process. A port-forward has no process, and would go on until its client hangs up.
    xenpod-cri may notice the hang-up half an hour late if the client's frames are read slowly.
    """

    def note(before: Sandbox | None, after: Sandbox | None) -> None:
        if before is not None and (after is None or after.phase not in HAS_ZONE):
            pods.end(before.id)

    sandboxes.observe(note)
