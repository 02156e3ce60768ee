"""Preflight: compares the host's settings with the demands of the configuration."""

from __future__ import annotations

import logging

from daemonkit.faults import Fault
from protect.config import ProtectdConfig
from protect.host.devices import is_pci
from protect.model.capacity.host import HostWants
from protect.model.events import NoticeGone, NoticeSeen
from protect.state.manager import ZoneManager

log = logging.getLogger(__name__)


def wants(config: ProtectdConfig) -> HostWants:
    """The configuration's demands on the host."""
    return HostWants(
        zones=config.limits.zones,
        disks_per_zone=config.limits.disks_per_zone,
        pci=any(is_pci(device.place) for device in config.host.devices.values()),
    )


async def check(manager: ZoneManager) -> None:
    """Check the host's settings, and publish new and withdrawn notices; a failure is logged."""
    try:
        found = await manager.toolstack.preflight(wants(manager.config))
    except Fault as fault:
        log.error("the host's settings are not known: %s", fault)
        return
    before, manager.preflight = manager.preflight, found
    for notice in found:
        if notice not in before:
            log.warning("%s", notice.text)
            manager.hub.publish(NoticeSeen(notice))
    for setting in {notice.setting for notice in before} - {notice.setting for notice in found}:
        manager.hub.publish(NoticeGone(setting))
