"""What RunPodSandbox made outside this daemon, taken away: the zone and the network.  May be repeated."""

from __future__ import annotations

from cri.runtime import Runtime
from cri.sandbox import kernel
from cri.state.sandbox import Sandbox
from cri.together import each
from daemonkit.checkpoints import checkpoint, declare

declare("teardown.zone-destroyed", "teardown.network-detached")


async def teardown(runtime: Runtime, sandbox: Sandbox) -> None:
    """Both side by side, each to its end; the first failure is raised."""
    await each([_destroy_zone(runtime, sandbox), _detach(runtime, sandbox)])


async def _destroy_zone(runtime: Runtime, sandbox: Sandbox) -> None:
    await runtime.zones.destroy_zone(sandbox.id)
    kernel.release(runtime, sandbox.id)
    checkpoint("teardown.zone-destroyed")


async def _detach(runtime: Runtime, sandbox: Sandbox) -> None:
    await runtime.network.detach(sandbox.attachment)
    checkpoint("teardown.network-detached")
