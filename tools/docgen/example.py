"""Reads the comments of an example configuration, which explain its keys and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_TABLE = re.compile(r"(?:# )?\[\[?(?P<path>[a-z0-9_.]+)\]\]?$")
_KEY = re.compile(r"(?P<comment># )?(?P<key>[a-z][a-z0-9_]*) = (?P<value>[\"\[{\d-].*|true|false)$")


@dataclass(slots=True)
class Group:
    """Keys with a common comment."""

    text: str
    keys: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Section:
    """A table of the file ("": its top), the comment above the table, and its keys."""

    path: str
    text: str
    groups: list[Group] = field(default_factory=list)

    def keys(self) -> Iterator[str]:
        for group in self.groups:
            yield from group.keys


def read_example(path: Path) -> list[Section]:
    """The tables of the file, in order.  A comment before a blank line explains no key."""
    sections = [Section("", "")]
    comment: list[str] = []
    beginning = True
    for line in path.read_text().splitlines():
        table, key = _TABLE.match(line), _KEY.match(line)
        if table:
            sections.append(Section(table["path"], " ".join(comment)))
            comment = []
        elif key:
            _add_key(sections[-1], key, " ".join(comment))
            comment = []
        elif line.startswith("#"):
            comment.append(line[1:].strip())
        elif not line:
            if beginning:
                sections[0].text = " ".join(comment)
            beginning = False
            comment = []
        else:
            raise ValueError(f"{path}: neither a comment nor a key: {line}")
    return sections


def _add_key(section: Section, key: re.Match[str], text: str) -> None:
    name = key["key"]
    if key["comment"] and name in section.keys():
        section.groups[-1].examples.append(f"{name} = {key['value']}")
        return
    if text or not section.groups:
        section.groups.append(Group(text))
    section.groups[-1].keys.append(name)
