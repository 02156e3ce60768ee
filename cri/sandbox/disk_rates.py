"""Rates of a pod's disks: from its handler; annotations may lower the rates if the handler allows."""

from __future__ import annotations

from collections.abc import Mapping

from cri.checks.fields import RUN
from cri.config import DISK_RATES, MOST_RATE_PER_SECOND, HandlerConfig
from daemonkit.faults import Denied, Invalid
from daemonkit.quantity import within
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

_FIELDS: Mapping[str, str] = {
    "disk_read_rate": "read_bytes",
    "disk_write_rate": "write_bytes",
    "disk_read_operations": "read_operations",
    "disk_write_operations": "write_operations",
}


def disk_rates(config: cri.PodSandboxConfig, name: str, handler: HandlerConfig) -> pb.DiskRates | None:
    """The rates of a pod of the handler ``name``; None: unlimited.

    Invalid: an annotation that is no rate (0 is no rate); Denied: a rate above the handler's.
    """
    found = {
        _FIELDS[setting]: _annotated(config, key, name, getattr(handler, setting))
        or getattr(handler, setting)
        for key, setting in DISK_RATES.items()
    }
    return pb.DiskRates(**found) if any(found.values()) else None


def _annotated(config: cri.PodSandboxConfig, key: str, name: str, limit: int) -> int:
    """The pod's own rate; 0: none."""
    if key not in config.annotations:
        return 0
    try:
        rate = within(config.annotations[key], MOST_RATE_PER_SECOND)
    except ValueError as error:
        raise Invalid("read annotation", key, str(error), 'e.g. "50Mi" bytes, or "1000" operations') from None
    if 0 < limit < rate:
        cause = f"annotation {key}: {rate} per second are more than handlers.{name}.{DISK_RATES[key]}"
        raise Denied(RUN, config.metadata.name, f"{cause} of cri.toml, {limit}")
    return rate
