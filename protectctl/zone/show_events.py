"""``protect zone events``: shows events of zones and their workloads, from now on."""

from __future__ import annotations

import argparse

from protectctl import daemons, selector, show
from xenpod_proto.protect.v1 import protect_pb2 as pb


async def events(options: argparse.Namespace) -> None:
    """Show events until interrupted; for a single zone, until the zone is gone."""
    wanted = ""
    if options.id:
        async with daemons.zones(options) as zones:
            wanted = await daemons.zone_id(zones, options.id)
    following = EventFilter(wanted, options.selector)
    async with daemons.host(options) as service:
        async for event in service.Watch(pb.WatchRequest()):
            if following.is_wanted(event) and (following.synced or options.all):
                show.event(event, options.output)
            if wanted and following.synced and wanted not in following.zones:
                return


class EventFilter:
    """Selects the events of the wanted zones, and keeps track of the existing zones and workloads."""

    def __init__(self, zone_id: str, chosen: selector.Selector) -> None:
        self.zones: dict[str, pb.Zone] = {}
        self.synced = False
        self._zone_id, self._selector = zone_id, chosen
        self._zone_of: dict[str, str] = {}

    def is_wanted(self, event: pb.WatchEvent) -> bool:
        """Note the event; returns whether the event belongs to a wanted zone."""
        match event.WhichOneof("event"):
            case "zone":
                self.zones[event.zone.id] = event.zone
                return self._fits(event.zone.id)
            case "zone_gone":
                fits = self._fits(event.zone_gone)
                self.zones.pop(event.zone_gone, None)
                return fits
            case "workload":
                self._zone_of[event.workload.id] = event.workload.zone_id
                return self._fits(event.workload.zone_id)
            case "workload_gone":
                return self._fits(self._zone_of.pop(event.workload_gone, ""))
            case "synced":
                self.synced = True
        return False

    def _fits(self, zone_id: str) -> bool:
        zone = self.zones.get(zone_id)
        if zone is None or self._zone_id not in ("", zone_id):
            return False
        return bool(self._selector.select(selector.ZONE, [zone]))
