"""Values of the Helm chart (deploy/chart), which makes the same objects as this package from platforms."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.objects.classes import Object
from cluster.objects.labeller import socket_of
from cluster.objects.platforms import NodePlatform


def values(platforms: Sequence[NodePlatform]) -> Object:
    """The chart's values about nodes.  Invalid: the platforms have the socket in different places."""
    return {
        "platforms": [_platform(one) for one in platforms],
        "labeller": {"criSocket": str(socket_of(platforms))},
    }


def _platform(one: NodePlatform) -> Object:
    values: Object = {
        "name": one.name,
        "handlers": list(one.handlers),
        "labels": dict(one.labels),
        "taints": [str(taint) for taint in one.taints],
        "overhead": dict(one.overhead),
        "overheads": {handler: dict(overhead) for handler, overhead in one.overheads.items()},
        "ownNamespaces": [handler for handler in one.handlers if handler in one.own_namespaces],
    }
    if one.delegate:
        values["delegate"] = {
            "namespaces": list(one.delegate.namespaces),
            "default": one.delegate.default,
            "hostNetwork": one.delegate.host_network,
        }
    return values
