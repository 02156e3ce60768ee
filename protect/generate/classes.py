"""RuntimeClasses, one for each handler of each platform."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protect.generate.platforms import NodePlatform
from protect.generate.syntax import Taint

Object = dict[str, Any]
"""A Kubernetes object as JSON or YAML has it.  It is written with its keys in their order here."""


def runtime_classes(platforms: Iterable[NodePlatform]) -> list[Object]:
    """The RuntimeClasses (``node.k8s.io/v1``), from which pods get their node selector and overhead."""
    return [_class(name, handler, one) for one in platforms for name, handler in one.classes.items()]


def _class(name: str, handler: str, platform: NodePlatform) -> Object:
    made: Object = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": handler,
    }
    if overhead := platform.overheads.get(handler, platform.overhead):
        made["overhead"] = {"podFixed": dict(overhead)}
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
