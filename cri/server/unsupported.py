"""The RPCs that are not there yet: one table, and an answer that names the RPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from daemonkit.faults import Unsupported

RPCS: tuple[str, ...] = (
    "StreamPodSandboxes",
    "StreamContainers",
    "UpdateContainerResources",
    "StreamContainerStats",
    "PodSandboxStats",
    "ListPodSandboxStats",
    "StreamPodSandboxStats",
    "CheckpointContainer",
    "GetContainerEvents",
    "ListMetricDescriptors",
    "ListPodSandboxMetrics",
    "StreamPodSandboxMetrics",
    "UpdatePodSandboxResources",
)

_Method = Callable[[Any, Any, Any], Awaitable[Any]]  # as generated servicers have it, open at this edge


def _refusing(name: str) -> _Method:
    async def method(self: Any, request: Any, context: Any) -> Any:
        raise Unsupported(name, "", f"this runtime does not implement {name} yet")

    method.__name__ = name
    return method


class NotYet:
    """A base that answers UNIMPLEMENTED to each RPC of the table."""


for _name in RPCS:
    setattr(NotYet, _name, _refusing(_name))
