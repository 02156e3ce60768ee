"""Finds whole ids from what a user types: an id, or an unambiguous prefix."""

from __future__ import annotations

from collections.abc import Sequence

from protect.cli.errors import CommandFailed

SHORT = 12
_MAX_SHOWN = 10


def one_of(ids: Sequence[str], text: str, noun: str) -> str:
    """The only id with this prefix.  If there is none, the text itself, which the daemon will refuse.

    CommandFailed: several ids have this prefix.
    """
    fitting = sorted(one for one in ids if one.startswith(text))
    if not text or not fitting or text in fitting:
        return text
    if len(fitting) == 1:
        return fitting[0]
    shown = ", ".join(fitting[:_MAX_SHOWN]) + (", ..." if len(fitting) > _MAX_SHOWN else "")
    raise CommandFailed(f"{text!r} is the beginning of {len(fitting)} {noun}s: {shown}: give more of it")


def short(ids: Sequence[str]) -> dict[str, str]:
    """The short form of each id (with or without "sha256:"): just long enough that all differ."""
    values = {one: one.removeprefix("sha256:") for one in ids}
    length = SHORT
    while len({value[:length] for value in values.values()}) < len(set(values.values())):
        length += 1
    return {one: value[:length] for one, value in values.items()}
