"""Patterns of image names in an operator's configuration."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

MAX_PATTERN = 1024


class Globs:
    """Patterns over whole, normalised names: ``*`` stands for any characters, ``/`` and ``:`` included.

    Raises ValueError for a pattern that no name could match.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [(pattern, _compiled(pattern)) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matching(self, names: Iterable[str]) -> str:
        """The first pattern that one of the names matches; "": none."""
        names = tuple(names)
        for pattern, compiled in self._patterns:
            if any(compiled.match(name) for name in names):
                return pattern
        return ""


def _compiled(pattern: str) -> re.Pattern[str]:
    if not pattern or len(pattern) > MAX_PATTERN or not pattern.isprintable() or " " in pattern:
        raise ValueError(f"{pattern[:80]!r} is no pattern of image names")
    return re.compile(fnmatch.translate(pattern))
