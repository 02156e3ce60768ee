"""Patterns of Kubernetes namespaces, in which ``*`` stands for any characters, or none."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PATTERN = re.compile(r"[a-z0-9*]([a-z0-9*-]{0,61}[a-z0-9*])?")
_ANY = "[a-z0-9-]*"


def expression(patterns: Sequence[str]) -> str:
    """A regular expression for the whole name of each namespace that the patterns name.

    Python and CEL (RE2) read it alike.  ValueError: there is no pattern, or no namespace could match one.
    """
    if not patterns:
        raise ValueError("there is no pattern")
    for one in patterns:
        if not _PATTERN.fullmatch(one):
            raise ValueError(f"{one!r:.80} is no pattern of namespaces, which are 1 to 63 of [a-z0-9-]")
    return f"^({'|'.join(one.replace('*', _ANY) for one in patterns)})$"


def matches(patterns: Sequence[str], untrusted_name: str) -> bool:
    """Whether one of the patterns names this namespace; an empty list names none."""
    return bool(patterns) and re.fullmatch(expression(patterns), untrusted_name) is not None
