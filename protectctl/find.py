"""Finds whole ids from a user's text: an id, a name, or an unambiguous prefix of an id or name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protectctl.command_errors import CommandFailed
from protectctl.output import plain

SHORT = 12
_MAX_SHOWN = 10


def one_of(ids: Sequence[str], text: str, noun: str, names: Mapping[str, str] | None = None) -> str:
    """The id meant by ``text``.  Without a match, the text itself, which the daemon will refuse.

    An exact id comes before an exact name, and both before prefixes.  ``names``: the names of ids.
    CommandFailed: several have this name or prefix.
    """
    if not text or text in ids:
        return text
    names = names or {}
    named = [one for one in ids if names.get(one) == text]
    fitting = sorted(
        named or (one for one in ids if one.startswith(text) or names.get(one, "").startswith(text))
    )
    if len(fitting) <= 1:
        return fitting[0] if fitting else text
    shown = [f"{one} ({plain(names[one])})" if names.get(one) else one for one in fitting[:_MAX_SHOWN]]
    more = ", ..." if len(fitting) > _MAX_SHOWN else ""
    what = "name" if named else "prefix"
    cause = f"{text!r} is the {what} of {len(fitting)} {noun}s: {', '.join(shown)}{more}"
    raise CommandFailed(f"{cause}: give {'the id' if named else 'more of it'}")


def short(ids: Sequence[str]) -> dict[str, str]:
    """The short form of each id (with or without "sha256:"): just long enough to distinguish all."""
    values = {one: one.removeprefix("sha256:") for one in ids}
    length = SHORT
    while len({value[:length] for value in values.values()}) < len(set(values.values())):
        length += 1
    return {one: value[:length] for one, value in values.items()}
