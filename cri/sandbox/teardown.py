"""What RunPodSandbox made outside this daemon, taken away: the zone and the network.  May be repeated."""

from __future__ import annotations

from cri.sandbox import kernel
from cri.state.node import Node
from cri.state.sandbox import Sandbox
from cri.together import each
from daemonkit.checkpoints import checkpoint, declare

declare("teardown.zone-destroyed", "teardown.network-detached")


async def teardown(node: Node, sandbox: Sandbox) -> None:
    """Both side by side, each to its end; the first failure is raised."""
    await each([_destroy_zone(node, sandbox), _detach(node, sandbox)])


async def _destroy_zone(node: Node, sandbox: Sandbox) -> None:
    await node.zones.destroy_zone(sandbox.id)
    kernel.release(node, sandbox.id)
    checkpoint("teardown.zone-destroyed")


async def _detach(node: Node, sandbox: Sandbox) -> None:
    await node.network.detach(sandbox.attachment)
    checkpoint("teardown.network-detached")
