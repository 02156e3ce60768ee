"""Parses YAML into a tree whose nodes know their positions, so that an edit can leave all other text alone.

ruamel.yaml delivers the events with their positions.  Aliases are not expanded, and nothing recurses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

DEPTH = 100
"""Most levels of nested collections."""

MERGE = "<<"

WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Plain texts, in lower case, that YAML 1.1 takes for booleans or null; Kubernetes reads YAML 1.1."""

_COLON = re.compile(r"[ \t]*:")
# Possessive, so that no text takes more than one attempt.
_FIRST_DASH = re.compile(r"(?:[&!]\S*+|#[^\n]*+|\s)*+-")
_NEXT_DASH = re.compile(r"(?:#[^\n]*+|\s)*+-")


class ManifestError(Exception):
    """A file cannot be read or changed: says the line (from 1; 0: none) and what is wrong with it."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


@dataclass(frozen=True, eq=False)
class ScalarNode:
    """A scalar.  ``start`` is the index of its first character, anchor or tag; ``end`` is after its last."""

    start: int
    end: int
    line: int
    anchor: str
    value: str
    plain: bool
    """Whether it has no quotes, and is not a block scalar."""


@dataclass(frozen=True, eq=False)
class AliasNode:
    """An alias ``*name`` of a node elsewhere in the document."""

    start: int
    end: int
    line: int
    target: YamlNode


@dataclass(frozen=True, eq=False)
class _Collection:
    """What mappings and sequences share.  ``end`` is after the last value, or after the closing bracket."""

    start: int
    end: int
    line: int
    anchor: str
    column: int
    """Column of the first key, of the dashes, or of the opening bracket."""
    flow: bool
    """Whether it is written in brackets."""


@dataclass(frozen=True, eq=False)
class MappingNode(_Collection):
    """A mapping."""

    pairs: Sequence[tuple[YamlNode, YamlNode]]

    def written(self, key: str) -> YamlNode | None:
        """The value of a key as it is written here: aliases are not followed, merged keys not found."""
        return next((value for name, value in self.pairs if _is(name, key)), None)

    def get(self, key: str) -> YamlNode | None:
        """The value of a key, with aliases followed; merged keys (``<<``) are found after its own."""
        seen: set[int] = set()
        waiting: list[YamlNode] = [self]
        while waiting:
            node = resolve(waiting.pop(0))
            if isinstance(node, SequenceNode):
                waiting[:0] = node.items
            elif isinstance(node, MappingNode) and id(node) not in seen:
                seen.add(id(node))
                if (value := node.written(key)) is not None:
                    return resolve(value)
                waiting[:0] = [merged for name, merged in node.pairs if _is(name, MERGE)]
        return None


@dataclass(frozen=True, eq=False)
class SequenceNode(_Collection):
    """A sequence."""

    items: Sequence[YamlNode]


YamlNode: TypeAlias = ScalarNode | AliasNode | MappingNode | SequenceNode


@dataclass(frozen=True)
class YamlDocument:
    """A document, and the number of aliases of each of its nodes, by ``id``."""

    root: YamlNode
    aliases: Mapping[int, int]


def documents(text: str) -> Iterator[YamlDocument]:
    """Parse the documents of a file.

    ManifestError: it is not YAML; a mapping has a key twice; an alias has no anchor, or is inside the node
    that it names; collections are nested more than ``DEPTH`` times.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        composer = _Composer(text)
        for event in YAML(typ="safe", pure=True).parse(text):
            if (document := composer.take(type(event).__name__, event)) is not None:
                yield document
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ManifestError(line, f"the character {error.character!r} is not allowed in YAML") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        raise ManifestError(line + 1, _explained(text, error)) from None
    except (YAMLError, ValueError) as error:  # ValueError: \U and directives with numbers that cannot be
        raise ManifestError(0, f"not YAML: {' '.join(str(error).split())[:200]}") from None


def resolve(node: YamlNode) -> YamlNode:
    """The target of an alias; any other node itself."""
    return node.target if isinstance(node, AliasNode) else node


def text_of(node: YamlNode | None) -> str | None:
    """The value of a scalar; None for anything else."""
    return node.value if isinstance(node, ScalarNode) else None


@dataclass
class _Open:
    """A collection whose end has not come yet."""

    event: Any
    flow: bool
    keyed: bool
    """Whether it is a mapping."""
    first: int
    """Index of its first character; of the first dash of a block sequence."""
    nodes: list[YamlNode]
    keys: set[str]

    @property
    def wants_key(self) -> bool:
        return self.keyed and len(self.nodes) % 2 == 0


class _Composer:
    """Builds documents from the parser's events."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._open: list[_Open] = []
        self._anchors: dict[str, YamlNode | None] = {}
        self._aliases: Counter[int] = Counter()

    def take(self, kind: str, event: Any) -> YamlDocument | None:
        """Take the next event; returns the document if it is complete."""
        if kind == "DocumentStartEvent":
            self._anchors, self._aliases = {}, Counter()
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._begin(event, keyed=kind == "MappingStartEvent")
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            return self._add(self._ended(self._open.pop(), event))
        elif kind == "ScalarEvent":
            return self._add(self._scalar(event))
        elif kind == "AliasEvent":
            return self._add(self._alias(event))
        return None

    def _begin(self, event: Any, *, keyed: bool) -> None:
        if len(self._open) == DEPTH:
            raise ManifestError(event.start_mark.line + 1, f"nested more than {DEPTH} times")
        if event.anchor:
            self._anchors[event.anchor] = None  # not before its end: nothing contains itself
        first, flow = event.start_mark.index, bool(event.flow_style)
        if not keyed and not flow and (dash := _FIRST_DASH.match(self._text, first)):
            first = dash.end() - 1
        self._open.append(_Open(event, flow, keyed, first, [], set()))

    def _add(self, node: YamlNode) -> YamlDocument | None:
        if not isinstance(node, AliasNode) and node.anchor:
            self._anchors[node.anchor] = node
        if not self._open:
            return YamlDocument(node, self._aliases)
        inside = self._open[-1]
        if isinstance(node, ScalarNode) and inside.wants_key:
            if node.value in inside.keys:
                raise ManifestError(node.line, f"the key {node.value!r:.100} is here twice")
            inside.keys.add(node.value)
        inside.nodes.append(node)
        return None

    def _scalar(self, event: Any) -> ScalarNode:
        start, end = event.start_mark.index, event.end_mark.index
        if start == end:
            start = end = self._empty(start)
        line = event.start_mark.line + 1
        return ScalarNode(start, end, line, event.anchor or "", event.value, not event.style)

    def _empty(self, reported: int) -> int:
        """Index of an empty value: after its colon or dash.  ruamel.yaml reports that of the next token."""
        if not self._open or self._open[-1].wants_key:
            return reported
        inside = self._open[-1]
        if inside.keyed:
            before = inside.nodes[-1].end
            sign = _COLON.match(self._text, before)
        else:
            before = inside.nodes[-1].end if inside.nodes else inside.first
            sign = _NEXT_DASH.match(self._text, before)
        return sign.end() if sign else before

    def _alias(self, event: Any) -> AliasNode:
        line = event.start_mark.line + 1
        target = self._anchors.get(event.anchor)
        if target is None:
            why = "is within what it names" if event.anchor in self._anchors else "has no anchor before it"
            raise ManifestError(line, f"the alias *{event.anchor:.100} {why}")
        self._aliases[id(target)] += 1
        return AliasNode(event.start_mark.index, event.end_mark.index, line, target)

    def _ended(self, of: _Open, event: Any) -> MappingNode | SequenceNode:
        start, line, anchor = of.event.start_mark.index, of.event.start_mark.line + 1, of.event.anchor or ""
        end = event.end_mark.index if of.flow or not of.nodes else of.nodes[-1].end
        first = of.nodes[0].start if of.keyed and of.nodes and not of.flow else of.first
        column = first - (self._text.rfind("\n", 0, first) + 1)
        if not of.keyed:
            return SequenceNode(start, end, line, anchor, column, of.flow, tuple(of.nodes))
        pairs = tuple(zip(of.nodes[::2], of.nodes[1::2], strict=True))
        return MappingNode(start, end, line, anchor, column, of.flow, pairs)


def _is(name: YamlNode, key: str) -> bool:
    return isinstance(name, ScalarNode) and name.value == key


def _explained(text: str, error: Any) -> str:
    """The text of an error of ruamel.yaml, with the likely reason."""
    said = " ".join(part for part in (error.context, error.problem) if part)
    if "{{" in text:
        said += "; if it is a template, take what it renders (helm template)"
    return f"not YAML: {said[:300]}"
