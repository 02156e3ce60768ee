"""RuntimeClasses, a class for each handler of each platform."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cluster.objects.platforms import NodePlatform
from cluster.objects.syntax import Taint

Object = dict[str, Any]
"""A Kubernetes object as in JSON or YAML. The keys are written in the order of the dictionary."""


def runtime_classes(platforms: Iterable[NodePlatform], *, claimed: bool = False) -> list[Object]:
    """The RuntimeClasses (``node.k8s.io/v1``), from which pods get their node selector and overhead.

    ``claimed``: claims count the zones' memory, and dom0's memory does not.
    """
    made = [(name, handler, one) for one in platforms for name, handler in one.classes.items()]
    return [_class(name, handler, one, claimed) for name, handler, one in made]


def _class(name: str, handler: str, platform: NodePlatform, claimed: bool) -> Object:
    made: Object = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": handler,
    }
    overhead = dict(platform.overheads.get(handler, platform.overhead))
    if claimed:
        overhead.pop("memory", None)
    if overhead:
        made["overhead"] = {"podFixed": overhead}
    scheduling: Object = {"nodeSelector": dict(platform.labels)}
    if platform.taints:
        scheduling["tolerations"] = [toleration(taint) for taint in platform.taints]
    made["scheduling"] = scheduling
    return made


def toleration(taint: Taint) -> Object:
    """A toleration of exactly this taint; a taint without a value is tolerated with any value."""
    if not taint.value:
        return {"key": taint.key, "operator": "Exists", "effect": taint.effect}
    return {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
