"""ConnectNetwork: splices the zone's interface to the pod's, and lets the agent configure the zone's end."""

from __future__ import annotations

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Refused
from daemonkit.observe.steps import step
from protect.model.ports import Splice
from protect.model.toolstack import Toolstack
from protect.model.zone import ZoneState
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.state.store import Intent

OPERATION = "zone.connect"


async def connect(
    registry: Registry,
    toolstack: Toolstack,
    splice: Splice,
    zone_id: str,
    netns: str,
    interface: str,
    *,
    spoof_check: bool,
) -> None:
    """Connect the zone to the pod's network.  Repeatable: finishes an earlier try."""
    runtime = registry.zone("connect network", zone_id)
    async with runtime.lock:
        await runtime.agent.ready()
        if runtime.zone.spec.interfaces < 1:
            raise Refused("connect network", f"zone {runtime.id}", "it was created without an interface")
        data = {"netns": netns, "interface": interface, "spoof_check": "yes" if spoof_check else "no"}
        intent = Intent(OPERATION, data=data)
        registry.put_zone(runtime, runtime.zone, intent)
        checkpoint("zone-connect.recorded")
        try:
            await finish_connect(registry, toolstack, splice, runtime, intent)
        except BaseException:
            # Clear the intent: the next call repeats the splice, or the splice ends with the zone.
            if runtime.zone.state is ZoneState.RUNNING:
                registry.note_zone(runtime, runtime.zone)
            raise


async def finish_connect(
    registry: Registry, toolstack: Toolstack, splice: Splice, runtime: ZoneRuntime, intent: Intent
) -> None:
    """Do the steps after the record; the zone's lock is held."""
    netns, interface = intent.data["netns"], intent.data["interface"]
    host_interface = await toolstack.host_interface(runtime.zone.domain_id, 0)
    spoof_check = intent.data["spoof_check"] != "no"
    with step("network.splice", zone=runtime.id):
        guest = await splice(host_interface, netns, interface, spoof_check=spoof_check)
    checkpoint("zone-connect.spliced")
    await runtime.agent.configure_network(guest, interface)
    checkpoint("zone-connect.configured")
    registry.put_zone(runtime, runtime.zone)
    checkpoint("zone-connect.done")
