"""Changes to pods in manifests: the class of a platform, and the fields of add-ons for add-on nodes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.objects import syntax
from cluster.objects.manifests.document import ManifestError
from cluster.objects.platforms import PLACEHOLDER

_CLASS = "runtimeClassName"
PODS = re.compile(_CLASS)
"""Text in each document that ``fill`` may change."""

_ADDONS = ("DaemonSet", "Deployment", "StatefulSet")
ADDONS = re.compile("|".join(_ADDONS))
"""Text in each document that ``Critical`` may change."""

DEFAULT_LABEL = "xenpod.dev/pool=addons"
"""Label of nodes for add-ons.  NodeRestriction allows a kubelet to set it on its own node."""

TAINT = "CriticalAddonsOnly"
_TOLERATION = {"key": TAINT, "operator": "Exists"}
_TOLERATES = (_TOLERATION, {"operator": "Exists"})
_PREFERRED = ("affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
_TEMPLATE = ("spec", "template", "spec")
_WORKLOADS = (*_ADDONS, "ReplicaSet", "ReplicationController", "Job")
_PATHS: Mapping[str, Sequence[str]] = {
    "Pod": ("spec",),
    "PodTemplate": ("template", "spec"),
    "CronJob": ("spec", "jobTemplate", *_TEMPLATE),
    **dict.fromkeys(_WORKLOADS, _TEMPLATE),
}
"""Path to the PodSpec in objects of each kind (Kubernetes API reference, workload resources)."""


def fill(root: Any, runtime_class: str) -> list[str]:
    """Give pods of the placeholder class this class; returns a line for each pod."""
    changes = []
    for who, spec in pods(root):
        if (old := spec.get(_CLASS)) == PLACEHOLDER:
            spec[_CLASS] = type(old)(runtime_class)  # with the same quotes
            changes.append(f"{who}: {_CLASS}: {old} -> {runtime_class}")
    return changes


@dataclass
class Critical:
    """Changes add-ons.  ``label`` is KEY or KEY=VALUE; ValueError: no label can be that.

    ``addons`` are names as ``namespace/name``; empty: every DaemonSet.  ``missing`` are those not found yet.
    """

    label: str = DEFAULT_LABEL
    addons: Collection[str] = ()
    missing: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(self.addons)
        key, equals, value = self.label.partition("=")
        syntax.labels({key: value})
        values: dict[str, Any] = {"operator": "In", "values": [value]} if equals else {"operator": "Exists"}
        self._term = {"weight": 100, "preference": {"matchExpressions": [{"key": key, **values}]}}

    def plan(self, root: Any) -> list[str]:
        """Add a toleration and a preference to the add-ons that lack them; returns a line for each add-on."""
        changes = []
        for who, spec in pods(root):
            kind, _, name = who.partition(" ")
            if kind in _ADDONS and (name in self.addons if self.addons else kind == "DaemonSet"):
                self.missing.discard(name)
                if _add_item(spec, ("tolerations",), _TOLERATES):
                    changes.append(f"{who}: tolerates {TAINT}")
                if _add_item(spec, _PREFERRED, (self._term,)):
                    changes.append(f"{who}: prefers nodes for add-ons")
        return changes


def pods(root: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """``KIND NAMESPACE/NAME`` and the PodSpec of each pod or workload, also of those in a list."""
    kind = str(root.get("kind")) if isinstance(root, dict) else ""
    items = root.get("items") if kind.endswith("List") else [root]
    for found in items if isinstance(items, list) else ():
        own = str(_inner(found, "kind") or kind.removesuffix("List"))
        spec = found if own in _PATHS else None
        for key in _PATHS.get(own, ()):
            spec = _inner(spec, key)
        if isinstance(spec, dict):
            name, space = (_inner(_inner(found, "metadata"), key) for key in ("name", "namespace"))
            yield f"{own} {space or 'default'}/{name}", spec


def _inner(found: Any, key: str) -> Any:
    return found.get(key) if isinstance(found, dict) else None


def _add_item(spec: dict[str, Any], path: Sequence[str], items: Sequence[object]) -> bool:
    """Append the first item to the list at the path, unless the list has any of the items."""
    there: Any = spec
    for key in path:
        if there.get(key) is None:
            there[key] = [] if key == path[-1] else {}
        there = there[key]
        if not isinstance(there, list if key == path[-1] else dict):
            raise ManifestError(f"{key} does not have the type that Kubernetes gives it")
    if any(item in there for item in items):
        return False
    there.append(items[0])
    return True
