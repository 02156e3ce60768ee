"""Fixtures of attacks on the real daemons."""

from tests.integration.conftest import busybox_image, source, zones

__all__ = ["busybox_image", "source", "zones"]
