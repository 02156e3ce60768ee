"""Links and headings of Markdown, as GitHub and the site read them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

_FENCED = re.compile(
    r"^[ \t]*(?P<fence>```+|~~~+)[^\n]*\n.*?^[ \t]*(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL
)
_CODE = re.compile(r"`+[^`\n]+`+")
_LINK = re.compile(r"(?<=\]\()(?P<target>[^()\s]+)(?=\))")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *#*$", re.MULTILINE)
_TEXT_OF_LINK = re.compile(r"!?\[(?P<text>[^\]]*)\]\([^)]*\)")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class PageLink:
    """A link to a file of the tree: its path from the tree's root, and the anchor ("": none)."""

    path: str
    anchor: str


def local(page: str, target: str) -> PageLink | None:
    """The link ``target`` on ``page``, a path from the tree's root.  None: a link out of the tree."""
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    return PageLink(os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page, anchor)


def targets(markdown: str) -> list[str]:
    """The targets of all links and pictures outside of code, in their order."""
    return [match["target"] for match in _LINK.finditer(_blanked(markdown))]


def replaced(markdown: str, change: Callable[[str], str]) -> str:
    """The text with ``change`` applied to the target of each link outside of code."""
    parts, end = [], 0
    for match in _LINK.finditer(_blanked(markdown)):
        parts += [markdown[end : match.start()], change(match["target"])]
        end = match.end()
    return "".join([*parts, markdown[end:]])


def anchors(markdown: str) -> set[str]:
    """The anchors of the headings."""
    found: Counter[str] = Counter()
    names = set()
    for match in _HEADING.finditer(_blanked(markdown, fenced_only=True)):
        text = _TEXT_OF_LINK.sub(r"\g<text>", match["text"])
        slug = _NOT_IN_ANCHORS.sub("", text).strip().lower().replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


def _blanked(markdown: str, *, fenced_only: bool = False) -> str:
    """The text with code made blank; every other character stays at its place."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    text = _FENCED.sub(blank, markdown)
    return text if fenced_only else _CODE.sub(blank, text)
