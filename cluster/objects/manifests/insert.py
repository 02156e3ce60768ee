"""Inserts keys and items into YAML, in the style of the text around them.

Between brackets (flow style) JSON is inserted, which is YAML too; elsewhere lines with the same indentation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from cluster.objects.manifests.folder import Edit
from cluster.objects.manifests.yamltree import (
    WORDS,
    ManifestError,
    MappingNode,
    ScalarNode,
    SequenceNode,
    YamlNode,
)

Value: TypeAlias = str | int | Sequence["Value"] | Mapping[str, "Value"]

_EMPTY = frozenset({"", "~", "null", "Null", "NULL"})


class Insertions:
    """Makes the edits that insert into one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._newline = "\r\n" if "\r\n" in text[: text.find("\n") + 1] else "\n"

    def key(self, into: MappingNode, key: str, value: Value, what: str) -> Edit:
        """Insert ``key: value`` at the end of a mapping that is not empty, or is in flow style."""
        if into.flow:
            return self._flow(into, f"{json.dumps(key)}: {json.dumps(value)}", bool(into.pairs), what)
        lines = _lines({key: value}, self._step(into))
        return self._block(into, [" " * into.column + line for line in lines], what)

    def item(self, into: SequenceNode, value: Value, what: str) -> Edit:
        """Append an item to a list."""
        if into.flow:
            return self._flow(into, json.dumps(value), bool(into.items), what)
        lines = _lines([value], 0)
        return self._block(into, [" " * into.column + line for line in lines], what)

    def instead(self, empty: YamlNode, value: Value, what: str) -> Edit:
        """Give a value to a key that has none, or null."""
        blank = " " if self._text[empty.start - 1 : empty.start] == ":" else ""
        return Edit(empty.start, empty.end, blank + json.dumps(value), empty.line, what)

    def _flow(self, into: MappingNode | SequenceNode, content: str, follows: bool, what: str) -> Edit:
        """Insert right after the opening bracket: before the closing one may be a comma or a comment."""
        at = self._text.index("[" if isinstance(into, SequenceNode) else "{", into.start) + 1
        return Edit(at, at, content + (", " if follows else ""), into.line, what)

    def _block(self, into: MappingNode | SequenceNode, lines: Sequence[str], what: str) -> Edit:
        """Insert whole lines, after the line in which the last value ends."""
        at, before, after = into.end, "", self._newline
        if self._text[at - 1 : at] != "\n":  # a block scalar ends with its line
            end = self._text.find("\n", at)
            rest = self._text[at : end if end >= 0 else len(self._text)].strip()
            if rest and not rest.startswith("#"):
                raise ManifestError(
                    into.line, f"{rest[:20]!r} follows in the same line: its form is too unusual"
                )
            if end >= 0:
                at = end + 1
            else:
                at, before, after = len(self._text), self._newline, ""
        content = self._newline.join(lines)
        return Edit(at, at, f"{before}{content}{after}", self._text.count("\n", 0, at) + 1, what)

    def _step(self, into: MappingNode) -> int:
        """How far lists are indented below their key in this mapping: 0 or 2."""
        return 0 if any(_dashed(value) == into.column for _, value in into.pairs) else 2


def is_empty(node: YamlNode) -> bool:
    """Whether a key's value is missing or null."""
    return isinstance(node, ScalarNode) and node.plain and not node.anchor and node.value in _EMPTY


def _dashed(node: YamlNode) -> int | None:
    return node.column if isinstance(node, SequenceNode) and not node.flow else None


def _lines(value: Value, step: int) -> list[str]:
    """The value as lines in block style, with lists indented by ``step`` below their key."""
    if isinstance(value, Mapping):
        found = []
        for key, inner in value.items():
            if isinstance(inner, str | int):
                found.append(f"{key}: {_scalar(inner)}")
            else:
                shift = " " * (2 if isinstance(inner, Mapping) else step)
                found += [f"{key}:", *(shift + line for line in _lines(inner, step))]
        return found
    if isinstance(value, Sequence) and not isinstance(value, str):
        found = []
        for inner in value:
            first, *rest = _lines(inner, step)
            found += [f"- {first}", *(f"  {line}" for line in rest)]
        return found
    return [_scalar(value)]


def _scalar(value: str | int) -> str:
    """The scalar, quoted if it would otherwise be read as something other than this text."""
    if isinstance(value, int):
        return str(value)
    plain = value.isascii() and value[:1].isalpha() and all(c.isalnum() or c in "-./_" for c in value)
    return value if plain and value.lower() not in WORDS else json.dumps(value)
