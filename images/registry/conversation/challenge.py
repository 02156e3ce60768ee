"""Reads WWW-Authenticate headers (RFC 9110, 11.6.1) in time linear in their length."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

MAX_CHALLENGE_BYTES = 8 << 10
"""Length limit of a header, in characters; several headers count as one."""
_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"[ \t,]*")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
# Servers send URLs and scopes without quotes, too.
_BARE = re.compile(r'[^\s,"]*')
_ESCAPED = re.compile(r"\\(.)")


class Challenge(NamedTuple):
    """scheme, and names of parameters: in lower case; the first parameter of a name counts."""

    scheme: str
    parameters: Mapping[str, str]


def challenges(untrusted: str) -> list[Challenge]:
    """The challenges of a header, in order, up to the first syntax error; none if too long."""
    found: list[tuple[str, dict[str, str]]] = []
    at = 0
    while len(untrusted) <= MAX_CHALLENGE_BYTES:
        # Each pattern begins at the end of the last match, and can match in only one way.
        at = _match_end(_GAP, untrusted, at)
        word = _TOKEN.match(untrusted, at)
        if word is None:
            break
        equals = _match_end(_SPACE, untrusted, word.end())
        if untrusted[equals : equals + 1] != "=":
            found.append((word[0].lower(), {}))
            at = word.end()
            continue
        at = _match_end(_SPACE, untrusted, equals + 1)
        quoted = untrusted[at : at + 1] == '"'
        value = (_QUOTED if quoted else _BARE).match(untrusted, at)
        if not found or value is None:
            break
        at = value.end()
        found[-1][1].setdefault(word[0].lower(), _ESCAPED.sub(r"\1", value[1]) if quoted else value[0])
    return [Challenge(*one) for one in found]


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()
