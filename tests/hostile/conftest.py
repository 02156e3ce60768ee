"""Fixtures of attacks on the real daemons."""

from tests.contract.conftest import pod_network
from tests.integration.conftest import busybox_image, source, zones

__all__ = ["busybox_image", "pod_network", "source", "zones"]
