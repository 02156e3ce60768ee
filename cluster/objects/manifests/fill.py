"""``protect generate --fill``: replaces the placeholder class of pods by the class of a platform."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cluster.objects.manifests.folder import Edit
from cluster.objects.manifests.templates import pod_templates
from cluster.objects.manifests.yamltree import (
    ManifestError,
    ScalarNode,
    YamlDocument,
    YamlNode,
    documents,
    resolve,
)
from cluster.objects.platforms import PLACEHOLDER

_KEY = "runtimeClassName"
_WRITTEN = re.compile(rf"(?P<before>(?:[&!]\S*\s+)*(?P<quote>[\"']?)){PLACEHOLDER}(?P=quote)")


def fill(text: str, runtime_class: str) -> Sequence[Edit]:
    """The edits that replace the placeholder class by ``runtime_class`` in every pod.

    Only the characters of the name change.  Pods of another class keep it, so a second run changes nothing.
    A text without the word ``runtimeClassName`` is not parsed.
    ManifestError: it cannot be read; or the name is shared with something else, or written with escapes.
    """
    if runtime_class == PLACEHOLDER or _KEY not in text:
        return []
    edits: list[Edit] = []
    for document in documents(text):
        edits += _document(text, document, runtime_class)
    return edits


def _document(text: str, document: YamlDocument, runtime_class: str) -> list[Edit]:
    places: dict[int, YamlNode] = {}
    for template in pod_templates(document.root):
        value = template.spec.written(_KEY) or template.spec.get(_KEY)
        if value is not None and _is_placeholder(resolve(value)):
            places[id(value)] = value
    edits = []
    for value in places.values():
        target = resolve(value)
        ours = sum(resolve(other) is target for other in places.values())
        shared = document.aliases.get(id(target), 0) + 1 > ours
        if value is target and shared:
            raise ManifestError(
                value.line, "other values are aliases of this class: write it out in each place"
            )
        if value is target or id(target) not in places:  # else the alias follows what it names
            edits.append(_edit(text, value, runtime_class))
    return edits


def _is_placeholder(node: YamlNode) -> bool:
    return isinstance(node, ScalarNode) and node.value == PLACEHOLDER


def _edit(text: str, value: YamlNode, runtime_class: str) -> Edit:
    what = f"{_KEY}: {PLACEHOLDER} -> {runtime_class}"
    if not isinstance(value, ScalarNode):
        return Edit(value.start, value.end, runtime_class, value.line, what)
    match = _WRITTEN.fullmatch(text, value.start, value.end)
    if match is None:
        raise ManifestError(
            value.line, f"the class is written with escapes or as a block: write {PLACEHOLDER}"
        )
    start = match.end("before")
    return Edit(start, start + len(PLACEHOLDER), runtime_class, value.line, what)
