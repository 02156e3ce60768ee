"""Sizes of vchan rings: the guest picks them, dom0 maps the rings.  Larger rings end the connection."""

from __future__ import annotations

_PAGE_ORDER = 12

CHANNEL_ORDER = 16
"""The channel has at most two to this power bytes each way: WINDOW of zone/agent/channel/wire.h."""
SHARING_ORDER = 17
"""The same for the shared directory: RING of zone/agent/mounts/pump.c."""


def pages(order: int) -> int:
    """Pages that dom0 maps of a vchan: one that both sides share, and two rings (xen/io/libxenvchan.h)."""
    return 1 + 2 * (1 << (order - _PAGE_ORDER))
