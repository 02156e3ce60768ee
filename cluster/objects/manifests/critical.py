"""``protect generate --critical``: lets add-ons run on the nodes kept for them, and prefer these."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from cluster.objects.manifests.folder import Edit
from cluster.objects.manifests.insert import Insertions, Value, is_empty
from cluster.objects.manifests.templates import PodTemplate, pod_templates
from cluster.objects.manifests.yamltree import (
    AliasNode,
    ManifestError,
    MappingNode,
    SequenceNode,
    YamlDocument,
    YamlNode,
    documents,
    resolve,
    text_of,
)

DEFAULT_LABEL = "xenpod.dev/pool=addons"
"""Label of nodes for add-ons.  NodeRestriction allows a kubelet to set it on its own node."""

TAINT = "CriticalAddonsOnly"
_TOLERATION: Value = {"key": TAINT, "operator": "Exists"}
_WEIGHT = 100
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_NAMED_KINDS = frozenset({"DaemonSet", "Deployment", "StatefulSet"})
_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PREFIX = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_LABEL = re.compile(rf"(?P<key>(?:{_PREFIX}/)?{_NAME})(?:=(?P<value>(?:{_NAME})?))?")


@dataclass
class Critical:
    """Plans the changes to add-ons.  ``label`` is KEY or KEY=VALUE; ValueError: no label can be that.

    ``addons`` are names as ``namespace/name``; empty: every DaemonSet.  ``found`` collects those met.
    """

    label: str = DEFAULT_LABEL
    addons: Collection[str] = ()
    found: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        match = _LABEL.fullmatch(self.label)
        if match is None:
            raise ValueError(f"{self.label!r:.100} is not a label: want KEY or KEY=VALUE")
        key, value = match["key"], match["value"]
        self._expression: dict[str, Value] = {"key": key, "operator": "Exists"}
        if value is not None:
            self._expression = {"key": key, "operator": "In", "values": [value]}

    def plan(self, text: str) -> Sequence[Edit]:
        """The edits that a manifest needs; none if it has been changed already.

        ManifestError: it cannot be read, or a value to change is shared with something else.
        """
        if not any(kind in text for kind in _NAMED_KINDS):
            return []
        edits: list[Edit] = []
        for document in documents(text):
            for template in pod_templates(document.root):
                if self._takes(template):
                    edits += _Addon(Insertions(text), document, template).edits(self._expression)
        return edits

    def missing(self) -> Sequence[str]:
        """The named add-ons that were in no manifest."""
        return sorted(set(self.addons) - self.found)

    def _takes(self, template: PodTemplate) -> bool:
        if not self.addons:
            return template.kind == "DaemonSet"
        name = f"{template.namespace or 'default'}/{template.name}"
        if template.kind not in _NAMED_KINDS or name not in self.addons:
            return False
        self.found.add(name)
        return True


class _Addon:
    """The edits of one add-on."""

    def __init__(self, insert: Insertions, document: YamlDocument, template: PodTemplate) -> None:
        self._insert = insert
        self._document = document
        self._template = template
        self._who = f"{template.kind} {template.namespace or 'default'}/{template.name}"

    def edits(self, expression: Value) -> list[Edit]:
        found = [*self._toleration(), *self._affinity(expression)]
        if found:
            for node in self._template.path:
                self._own(node)
        return found

    def _toleration(self) -> list[Edit]:
        what = f"{self._who}: tolerates {TAINT}"
        there = self._template.spec.get("tolerations")
        if isinstance(there, SequenceNode) and any(_tolerates(resolve(item)) for item in there.items):
            return []
        return [self._append(self._template.spec, ("tolerations",), _TOLERATION, what)]

    def _affinity(self, expression: Value) -> list[Edit]:
        what = f"{self._who}: prefers nodes for add-ons"
        path = ("affinity", "nodeAffinity", _PREFERRED)
        node: YamlNode | None = self._template.spec
        for key in path:
            node = node.get(key) if isinstance(node, MappingNode) else None
        if isinstance(node, SequenceNode) and any(_prefers(resolve(item), expression) for item in node.items):
            return []
        term: Value = {"weight": _WEIGHT, "preference": {"matchExpressions": [expression]}}
        return [self._append(self._template.spec, path, term, what)]

    def _append(self, into: MappingNode, path: Sequence[str], item: Value, what: str) -> Edit:
        """Append an item to the list at the path; parts of the path that do not exist are added."""
        for depth, key in enumerate(path):
            rest: Value = [item]
            for inner in reversed(path[depth + 1 :]):
                rest = {inner: rest}
            there = into.written(key)
            if there is None:
                if into.get(key) is not None:
                    raise ManifestError(into.line, f"{key} is merged from an anchor: write it out here")
                return replace(self._insert.key(into, key, rest, what), depth=depth)
            if is_empty(there):
                # An empty value at the end of a text is where the next key would be, and comes before it.
                return replace(self._insert.instead(there, rest, what), depth=len(path) + 1)
            self._own(there)
            if isinstance(there, SequenceNode) and key == path[-1]:
                return replace(self._insert.item(there, item, what), depth=depth + 1)
            if not isinstance(there, MappingNode) or key == path[-1]:
                raise ManifestError(there.line, f"{key} is not what Kubernetes has there")
            into = there
        raise AssertionError("the path has at least one key")

    def _own(self, node: YamlNode) -> None:
        """Refuse to change a node that something else shares through an anchor."""
        if isinstance(node, AliasNode) or self._document.aliases.get(id(node)):
            text = f"{self._who}: what would change is shared through an anchor: write it out in each place"
            raise ManifestError(node.line, text)


def _tolerates(item: YamlNode) -> bool:
    """Whether the toleration covers the taint with any value and effect."""
    if not isinstance(item, MappingNode):
        return False
    every = text_of(item.get("operator")) == "Exists" and not text_of(item.get("effect"))
    return every and text_of(item.get("key")) in (TAINT, None, "")


def _prefers(item: YamlNode, expression: Value) -> bool:
    """Whether the term has this expression alone; another one would narrow it."""
    preference = item.get("preference") if isinstance(item, MappingNode) else None
    if not isinstance(preference, MappingNode) or preference.get("matchFields") is not None:
        return False
    terms = preference.get("matchExpressions")
    return isinstance(terms, SequenceNode) and [_plain(term) for term in terms.items] == [expression]


def _plain(node: YamlNode) -> Value:
    """An expression of an affinity as plain values."""
    found = resolve(node)
    if not isinstance(found, MappingNode):
        return ""
    plain: dict[str, Value] = {}
    for name, value in found.pairs:
        inner = resolve(value)
        key = text_of(resolve(name)) or ""
        if isinstance(inner, SequenceNode):
            plain[key] = [text_of(resolve(item)) or "" for item in inner.items]
        else:
            plain[key] = text_of(inner) or ""
    return plain
