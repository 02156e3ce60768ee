"""Writes objects as YAML with the same meaning in YAML 1.1, as Kubernetes reads, and 1.2."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString, SingleQuotedScalarString

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9._/()-]*( [A-Za-z0-9._/()-]+)*")

_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Plain texts, in lower case, that YAML 1.1 takes for booleans or null; Kubernetes reads YAML 1.1."""


def documents(objects: Iterable[Any]) -> str:
    """Write one document for each object, with keys in their order: equal objects give equal bytes."""
    return "---\n".join(map(document, objects))


def document(found: Any) -> str:
    writer = YAML()
    writer.width = 1 << 20  # no expression is broken
    writer.indent(mapping=2, sequence=2, offset=0)
    text = io.StringIO()
    writer.dump(_quoted(found), text)
    return text.getvalue()


def _quoted(value: Any) -> Any:
    """Quote every text that could be taken for a number, a boolean or YAML syntax."""
    match value:
        case dict():
            return {_quoted(key): _quoted(one) for key, one in value.items()}
        case list():
            return [_quoted(one) for one in value]
        case str() if "\n" in value:
            return LiteralScalarString(value)
        case str() if not _PLAIN.fullmatch(value) or value.lower() in _WORDS:
            return SingleQuotedScalarString(value) if '"' in value else DoubleQuotedScalarString(value)
    return value
