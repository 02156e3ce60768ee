"""Preflight: compares the host's settings with the demands of the configuration."""

from __future__ import annotations

import logging

from daemonkit.faults import Fault
from protect.config import ProtectdConfig
from protect.host.named_devices import is_pci
from protect.model.capacity.host_resources import HostWants
from protect.model.toolstack import Toolstack
from protect.state.registry import Registry

log = logging.getLogger(__name__)


def wants(config: ProtectdConfig) -> HostWants:
    """The configuration's demands on the host."""
    return HostWants(
        zones=config.limits.zones,
        disks_per_zone=config.limits.disks_per_zone,
        pci=any(is_pci(device.place) for device in config.host.devices.values()),
    )


async def check_host(registry: Registry, toolstack: Toolstack, config: ProtectdConfig) -> None:
    """Check the host's settings, and publish new and withdrawn notices; a failure is logged."""
    try:
        found = await toolstack.preflight(wants(config))
    except Fault as fault:
        log.error("the host's settings are not known: %s", fault)
        return
    for notice in registry.put_notices(found):
        log.warning("%s", notice.text)
