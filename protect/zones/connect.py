"""ConnectNetwork: splice the zone's interface to the pod's, and have the agent configure its end."""

from __future__ import annotations

from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Refused
from protect.model.zone import ZoneState
from protect.network.guest import GuestNetwork
from protect.state.node import Node, ZoneRuntime
from protect.state.store import Intent
from protect.tasks import whole
from xenpod_proto.channel.v1 import channel_pb2

OPERATION = "zone.connect"

declare("zone-connect.recorded", "zone-connect.spliced", "zone-connect.configured", "zone-connect.done")


async def connect(node: Node, zone_id: str, netns: str, interface: str) -> None:
    """May be repeated, and finishes what an earlier try began."""
    runtime = node.zone("connect network", zone_id)
    await node.tasks.conduct(_conduct(node, runtime, netns, interface), f"connect network of zone {zone_id}")


async def _conduct(node: Node, runtime: ZoneRuntime, netns: str, interface: str) -> None:
    async with runtime.lock:
        await runtime.agent()
        if runtime.zone.spec.interfaces < 1:
            raise Refused("connect network", f"zone {runtime.id}", "it was created without an interface")
        intent = Intent(OPERATION, data={"netns": netns, "interface": interface})
        node.put_zone(runtime, runtime.zone, intent)
        checkpoint("zone-connect.recorded")
        try:
            await finish(node, runtime, intent)
        except BaseException:
            # Nothing to finish at the next start; what was spliced goes with the zone, or is done again.
            if runtime.zone.state is ZoneState.RUNNING:
                node.note_zone(runtime, runtime.zone)
            raise


async def finish(node: Node, runtime: ZoneRuntime, intent: Intent) -> None:
    """The steps after the record; the zone's lock is held."""
    await runtime.end.guard(
        f"zone {runtime.id}", _steps(node, runtime, intent.data["netns"], intent.data["interface"])
    )
    node.put_zone(runtime, runtime.zone)
    checkpoint("zone-connect.done")


async def _steps(node: Node, runtime: ZoneRuntime, netns: str, interface: str) -> None:
    host_interface = await node.toolstack.host_interface(runtime.zone.domain_id, 0)
    guest = await whole(node.splice(host_interface, netns, interface))
    checkpoint("zone-connect.spliced")
    link = await runtime.agent()
    request = channel_pb2.Request(configure_network=_configuration(guest, interface))
    await link.call(request, node.config.timeouts.call)
    checkpoint("zone-connect.configured")


def _configuration(guest: GuestNetwork, name: str) -> channel_pb2.ConfigureNetwork:
    """Of the zone's first interface, under the name that CNI's has."""
    routes = [
        channel_pb2.Route(destination=route.destination, gateway=route.gateway) for route in guest.routes
    ]
    return channel_pb2.ConfigureNetwork(
        index=0, name=name, mac=guest.mac, mtu=guest.mtu, addresses=guest.addresses, routes=routes
    )
