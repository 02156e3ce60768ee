"""Counters of all zones' channels together."""

from __future__ import annotations

from prometheus_client import Counter

from daemonkit.observe.metrics import REGISTRY

CONNECTIONS = Counter(
    "xenpod_channel_connections", "Connections to agents that were greeted.", registry=REGISTRY
)
VIOLATIONS = Counter(
    "xenpod_channel_violations", "Agents that broke the channel's rules and were cut off.", registry=REGISTRY
)
STREAMS = Counter("xenpod_channel_streams", "Streams that agents have opened.", registry=REGISTRY)
_BYTES = Counter("xenpod_channel_bytes", "Bytes of frames.", ("direction",), registry=REGISTRY)
RECEIVED = _BYTES.labels("from_zones")
SENT = _BYTES.labels("to_zones")
