"""Patterns of image names in an operator's configuration."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from daemonkit.convert import WrongKey

MAX_PATTERN = 1024
_WILD = frozenset("*?[")
# Characters of image names (registry, repository, tag, digest), and wildcards.
_CHARACTERS = re.compile(r"[A-Za-z0-9._:/@+*?!\[\]-]+")


class Globs:
    """Patterns over whole, normalised names: ``*`` matches any characters, ``/`` and ``:`` included.

    Raises ValueError for a pattern without any possible match.  short: names may also be in short form, for
    example ``busybox:1``.
    """

    def __init__(self, patterns: Iterable[str], short: bool = False) -> None:
        self._patterns = [(pattern, _compiled(pattern, short)) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matching(self, names: Iterable[str]) -> str:
        """The first pattern that matches any of the names; "": none."""
        names = tuple(names)
        for pattern, compiled in self._patterns:
            if any(compiled.match(name) for name in names):
                return pattern
        return ""


def patterns(table: object, *keys: str) -> None:
    """Check a list of patterns in a table's ``__post_init__``.  WrongKey: a pattern can match no name."""
    for key in keys:
        try:
            Globs(getattr(table, key))
        except ValueError as error:
            raise WrongKey(key, str(error)) from None


def _compiled(pattern: str, short: bool) -> re.Pattern[str]:
    balanced = pattern.count("[") == pattern.count("]")
    if len(pattern) > MAX_PATTERN or not _CHARACTERS.fullmatch(pattern) or not balanced:
        raise ValueError(f"{pattern[:80]!r} is no pattern of image names")
    if not short and "/" not in pattern and _WILD.isdisjoint(pattern):
        raise ValueError(f"{pattern[:80]!r} is not a whole name, such as docker.io/library/busybox:1")
    return re.compile(fnmatch.translate(pattern))
