"""From what a user types to whole ids: an id, or its unambiguous beginning."""

from __future__ import annotations

from collections.abc import Sequence

from protect.cli.errors import CommandFailed

SHORT = 12
_MAX_SHOWN = 10


def one_of(ids: Sequence[str], text: str, noun: str) -> str:
    """The only id that begins so, or the text: an id, or what the daemon says there is none of.

    CommandFailed when several begin so.
    """
    fitting = sorted(one for one in ids if one.startswith(text))
    if not text or not fitting or text in fitting:
        return text
    if len(fitting) == 1:
        return fitting[0]
    shown = ", ".join(fitting[:_MAX_SHOWN]) + (", ..." if len(fitting) > _MAX_SHOWN else "")
    raise CommandFailed(f"{text!r} is the beginning of {len(fitting)} {noun}s: {shown}: give more of it")


def short(ids: Sequence[str]) -> dict[str, str]:
    """Each id (with or without "sha256:") as a table shows it: so long that they can be told apart."""
    values = {one: one.removeprefix("sha256:") for one in ids}
    length = SHORT
    while len({value[:length] for value in values.values()}) < len(set(values.values())):
        length += 1
    return {one: value[:length] for one, value in values.items()}
