"""StopContainer: its stop signal, then SIGKILL when its time is over."""

from __future__ import annotations

import signal

from cri.container.kill import kill, signal_it, wait
from cri.runtime import Runtime
from cri.state.container import ContainerPhase
from daemonkit.faults import Missing, TooLate

_LONGEST = 7 * 24 * 3600


async def stop(runtime: Runtime, wanted: str, grace: int) -> None:
    """``grace`` in seconds; 0 kills at once.  Idempotent; an unknown id, or one that does not run, succeeds.

    No lock is held: a second call with less patience must get through.
    """
    try:
        container = runtime.containers.find(wanted)
    except Missing:
        return
    if container.phase is not ContainerPhase.RUNNING:
        return
    if grace > 0 and container.stop_signal != signal.SIGKILL:
        await signal_it(runtime, container, container.stop_signal)
        try:
            await wait(runtime, container, min(grace, _LONGEST))
        except TooLate:
            pass
        else:
            return
    await kill(runtime, container)
    after = runtime.containers.has(container.id) and runtime.containers.get(container.id)
    if after and after.phase is ContainerPhase.RUNNING:
        raise TooLate("stop container", container.id, "killed, but its zone does not say that it ended")
