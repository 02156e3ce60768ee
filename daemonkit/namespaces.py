"""Patterns of Kubernetes namespaces; ``*`` matches any characters, or none."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PATTERN = re.compile(r"[a-z0-9*]([a-z0-9*-]{0,61}[a-z0-9*])?")
_ANY = "[a-z0-9-]*"


def expression(patterns: Sequence[str]) -> str:
    """A regular expression for the whole name of each matching namespace.

    Python and CEL (RE2) read it alike.  ValueError: no pattern, or a pattern that no namespace can match.
    """
    if not patterns:
        raise ValueError("there is no pattern")
    for one in patterns:
        if not _PATTERN.fullmatch(one):
            raise ValueError(f"{one!r:.80} is no pattern of namespaces, which are 1 to 63 of [a-z0-9-]")
    return f"^({'|'.join(one.replace('*', _ANY) for one in patterns)})$"


def matches(patterns: Sequence[str], untrusted_name: str) -> bool:
    """Whether a pattern matches this namespace; an empty list matches none."""
    return bool(patterns) and re.fullmatch(expression(patterns), untrusted_name) is not None
