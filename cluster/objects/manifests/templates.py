"""Finds the pod specs in manifests: of pods, of workloads' templates, and of both in lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cluster.objects.manifests.yamltree import MappingNode, SequenceNode, YamlNode, resolve, text_of

_TEMPLATE = ("spec", "template", "spec")

PATHS: Mapping[str, Sequence[str]] = {
    "Pod": ("spec",),
    "PodTemplate": ("template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    **dict.fromkeys(
        ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"), _TEMPLATE
    ),
}
"""Path to the PodSpec in objects of each kind (Kubernetes API reference, workload resources)."""


@dataclass(frozen=True)
class PodTemplate:
    """A PodSpec in a manifest, and the object that it belongs to."""

    kind: str
    namespace: str
    name: str
    spec: MappingNode
    path: Sequence[YamlNode]
    """The nodes from the object down to the spec, with aliases not followed."""


def pod_templates(root: YamlNode) -> Iterator[PodTemplate]:
    """The pod templates of a document; an object counts once, however many aliases lead to it."""
    seen: set[int] = set()
    waiting = [(root, "")]
    while waiting:
        node, implied = waiting.pop()
        found = resolve(node)
        if not isinstance(found, MappingNode) or id(found) in seen:
            continue
        seen.add(id(found))
        kind = text_of(found.get("kind")) or implied
        items = found.get("items")
        if kind.endswith("List") and isinstance(items, SequenceNode):
            waiting += [(item, kind.removesuffix("List")) for item in reversed(items.items)]
        elif (template := _template(kind, found)) is not None:
            yield template


def _template(kind: str, found: MappingNode) -> PodTemplate | None:
    metadata = found.get("metadata")
    names = metadata if isinstance(metadata, MappingNode) else None
    path: list[YamlNode] = []
    for key in PATHS.get(kind, ()):
        value = found.written(key) or found.get(key)
        if value is None:
            return None
        path.append(value)
        inner = resolve(value)
        if not isinstance(inner, MappingNode):
            return None
        found = inner
    name, namespace = (text_of(names.get(key)) or "" if names else "" for key in ("name", "namespace"))
    return PodTemplate(kind, namespace, name, found, tuple(path)) if path else None
