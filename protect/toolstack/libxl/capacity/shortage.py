"""Finds the exhausted host resource in libxl's log of a failed create."""

from __future__ import annotations

import re

_SHORT = (
    (r"shadow|paging[ _](?:memory|pool)|hap", "memory for the page tables that Xen keeps for it"),
    (r"[Qq]uota|EQUOTA|ENOSPC.*xenstore|xs_\w+.*No space", "nodes in xenstore (its quota of a domain)"),
    (r"event[ -]channel|evtchn", "event channels (event_channels of the domain)"),
    (r"grant|gnttab|maptrack|No space left on device", "grants or mappings of them (gnttab_max_frames,"
     " gnttab_max_maptrack_frames of Xen's command line)"),
    (r"claim|Cannot allocate memory|Out of memory|ENOMEM|populate_physmap", "memory of the host"),
)  # fmt: skip
_FAILS = re.compile(
    r"Cannot allocate memory|No space left on device|Out of memory|[Qq]uota exceeded|E(?:NOMEM|NOSPC|QUOTA)"
    r"|claim|failed to allocate|not enough",
)


def shortage(said: str) -> str:
    """The exhausted resource; "" if the text names none."""
    if not _FAILS.search(said):
        return ""
    return next((what for pattern, what in _SHORT if re.search(pattern, said)), "")
