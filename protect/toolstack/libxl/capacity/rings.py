"""Sizes of vchan rings.  The guest picks the size, dom0 maps the rings; larger rings end the connection."""

from __future__ import annotations

_PAGE_ORDER = 12

CHANNEL_ORDER = 16
"""Log2 of the channel's ring size in bytes, each way: WINDOW of zone/agent/channel/wire.h."""
SHARING_ORDER = 17
"""The same for the shared directory: RING of zone/agent/mounts/pump.c."""


def pages(order: int) -> int:
    """Pages of a vchan that dom0 maps: one shared page, and two rings (xen/io/libxenvchan.h)."""
    return 1 + 2 * (1 << (order - _PAGE_ORDER))
