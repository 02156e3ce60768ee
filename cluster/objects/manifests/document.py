"""Changes documents of YAML or JSON by ruamel.yaml's round trip, which keeps comments, order and quotes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import AliasEvent

Planner: TypeAlias = Callable[[Any], Sequence[str]]
"""Changes a document in place; returns a line for each change.  ManifestError: it cannot be changed."""

_START = re.compile(r"^(?=---(?:\s|$))", re.MULTILINE)
_MAPPING = re.compile(r"^( *)[^\s#-].*:\n\1( +)[^\s#-]", re.MULTILINE)
_LIST = re.compile(r"^( *)[^\s#-].*:\n\1( *)- ", re.MULTILINE)


class ManifestError(Exception):
    """A manifest cannot be read or changed; ``line`` counts from 1, and 0 is none."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


def edited(text: str, words: re.Pattern[str], plan: Planner) -> tuple[str, Sequence[str]]:
    """The text as ``plan`` changes it, and a line for each change.

    Documents without the words are not parsed, and documents without a change keep their bytes.
    ManifestError: a document cannot be read or changed.
    """
    if text.startswith("{") and (found := _json(text)):
        changes = list(plan(found))
        return (json.dumps(found, indent=2, ensure_ascii=False) + "\n" if changes else text), changes
    parts, changes, line = [], [], 0
    for part in _START.split(text):
        try:
            changed, more = _document(part, plan) if words.search(part) else (part, ())
        except ManifestError as error:
            error.line += line if error.line else 0
            raise
        parts.append(changed)
        changes += more
        line += part.count("\n")
    return "".join(parts), changes


def _json(text: str) -> Any:
    """The value of JSON; None for anything else, such as YAML in flow style."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _document(text: str, plan: Planner) -> tuple[str, Sequence[str]]:
    """Change one document of YAML."""
    try:
        return _round_trip(text, plan)
    except ManifestError:
        raise
    except Exception as error:  # ruamel.yaml raises many types for hostile text
        marked = error if isinstance(error, MarkedYAMLError) else None
        mark = marked and (marked.problem_mark or marked.context_mark)
        said = (
            "nested too deeply" if isinstance(error, RecursionError) else marked and marked.problem or error
        )
        hint = "; if it is a template, take what it renders (helm template)" if "{{" in text else ""
        raise ManifestError(f"not YAML: {said!s:.200}{hint}", mark.line + 1 if mark else 0) from None


def _round_trip(text: str, plan: Planner) -> tuple[str, Sequence[str]]:
    lines = text.replace("\r\n", "\n")
    yaml = _yaml(lines)
    found = yaml.load(lines)
    if not (changes := plan(found)):
        return text, ()
    for event in yaml.parse(lines):
        if isinstance(event, AliasEvent):  # a change could reach other places, and a comparison takes forever
            raise ManifestError(f"write out the alias *{event.anchor:.100}", event.start_mark.line + 1)
    stream = io.StringIO()
    yaml.dump(found, stream)
    if _yaml(lines).load(stream.getvalue()) != found:
        raise ManifestError("its form is too unusual to be changed")
    return stream.getvalue().replace("\n", "\r\n" if lines != text else "\n"), changes


def _yaml(text: str) -> YAML:
    """A reader and writer with the indentation of the first mapping and list of the text."""
    yaml = YAML()
    yaml.preserve_quotes, yaml.width, yaml.explicit_start = True, 1 << 20, text.startswith("---")
    mapping, offset = (len(found[2]) if (found := form.search(text)) else None for form in (_MAPPING, _LIST))
    yaml.indent(mapping=mapping or 2, sequence=(offset or 0) + 2, offset=offset or 0)
    return yaml
