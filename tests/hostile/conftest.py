"""Fixtures of attacks on the real daemons."""

from tests.contract.conftest import pod_network
from tests.integration.conftest import (
    busybox_image,
    module_zones,
    shared_zones,
    source,
    zones,
    zones_settings,
)
from tests.support.cri.stage import fresh_stage, module_stage, stage, stage_settings

__all__ = [
    "busybox_image",
    "fresh_stage",
    "module_stage",
    "module_zones",
    "pod_network",
    "shared_zones",
    "source",
    "stage",
    "stage_settings",
    "zones",
    "zones_settings",
]
