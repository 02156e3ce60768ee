"""Writes docs/configuration.md from the configurations' classes and the comments of the shipped examples."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.dra.config import DraConfig
from cri.config import CriConfig
from protect.config import ProtectdConfig
from tools.docgen import example
from tools.docgen.keys import Key, tables

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/configuration.md"
FILES: tuple[tuple[str, str, str, type[Any]], ...] = (
    ("protectd.toml", "/etc/protect/protectd.toml", "protectd", ProtectdConfig),
    ("cri.toml", "/etc/xenpod/cri.toml", "xenpod-cri", CriConfig),
    ("dra.toml", "/etc/xenpod/dra.toml", "xenpod-dra", DraConfig),
)
"""For each file: its example's name in ``packaging``, its path on a host, its daemon, its class."""

_NAMED = {"handlers.xenpod": "handlers.NAME", "profiles.default": "profiles.NAME"}
"""Tables of the examples whose last name is a placeholder."""
_BEGINNING = """# Configuration

<!-- Made by `make reference` from the code and the comments of packaging/*.toml: change those. -->

Every key of the three configuration files: what it can be, its default, what it means.
Ranges are those that the daemon accepts while the other keys have their defaults.
The file must be there, and may be empty: a key that it lacks has its default.
A daemon does not start with a key that it does not know, or with a value that cannot work, and says which.
A change takes effect when the daemon is restarted; pods run on.

- A **size** is a number of bytes or a text such as `"256MiB"`.
  Units are `kB`, `MB`, `GB`, `TB`, and `KiB`, `MiB`, `GiB`, `TiB`.
- A **duration** is a number of seconds or a text such as `"250ms"`, `"10s"`, `"2m"`, `"1h"`.
- A **path** is absolute.
- **NAME** in the name of a table stands for a name of your own.
"""
_CODE = re.compile(
    r'"[^"\n]{0,60}"'
    r"|\[[\w.-]+\]"  # a table
    r"|(?<!\w)--[a-z][a-z-]*(?:=\w+)?"
    r"|(?:[\w./:-]|<[^>]+>)*(?:_|<[^>]+>|[*$])(?:[\w./:*$-]|<[^>]+>)*"
    r"|(?<!\w)/(?:[\w.-]+/)*[\w.-]+"
    r"|\b[\w/]+\.(?:toml|py|proto)\b|\bxenpod\.dev/[\w-]+"
)
_PAGE = re.compile(r"\bdocs/([\w/-]+\.md)")


class Undocumented(ValueError):
    """A key without a comment, or a comment without a key."""


def page() -> str:
    """The whole of docs/configuration.md."""
    parts = [_BEGINNING]
    for name, place, daemon, config in FILES:
        parts.append(f"\n## {name}\n\n`{place}`, read by {daemon}; `packaging/{name}` is the example.\n")
        parts += _tables(name, config)
    return "".join(parts)


def _tables(name: str, config: type[Any]) -> Iterator[str]:
    sections = {
        _NAMED.get(one.path, one.path): one for one in example.read_example(ROOT / "packaging" / name)
    }
    for path, keys in tables(config):
        section = sections.pop(path, None) or sections.pop(path.removesuffix(".NAME"), None)
        if not keys and section is None:
            continue
        if section is None:
            raise Undocumented(f"{name}: there is no table [{path}]")
        if path:
            yield f"\n### {name}: [{path}]\n"
            yield f"\n{_prose(section.text)}\n" if section.text else ""
        yield from _rows(f"{name}: [{path}]", section, {key.name: key for key in keys})
    if sections:
        raise Undocumented(f"{name}: no class has the tables {sorted(sections)}")


def _rows(where: str, section: example.Section, keys: dict[str, Key]) -> Iterator[str]:
    groups = list(section.groups)
    told = set(section.keys())
    if strangers := told - set(keys):
        raise Undocumented(f"{where}: the class has no {sorted(strangers)}")
    for name in keys:
        if name not in told:
            if not re.search(rf"\b{name}\b", section.text):
                raise Undocumented(f"{where}: nothing explains {name}")
            groups.append(example.Group("See above.", [name]))
    if any(not group.text for group in groups) and not section.text:
        raise Undocumented(f"{where}: a key without a comment, in a table without one")
    if groups:
        yield "\n| key | value | default | meaning |\n|---|---|---|---|\n"
    for group in groups:
        rows = [keys[name] for name in group.keys]
        cells = (
            "<br>".join(f"`{key.name}`" for key in rows),
            "<br>".join(key.values for key in rows),
            "<br>".join(f"`{key.default}`" if key.default else "-" for key in rows),
            " ".join([_prose(group.text or "See above."), *(f"Example: `{one}`." for one in group.examples)]),
        )
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _prose(comment: str) -> str:
    """A comment as Markdown: names and values as code, pages as links."""
    linked = _PAGE.split(comment)
    parts = []
    for number, part in enumerate(linked):
        parts.append(f"[{part}]({part})" if number % 2 else _CODE.sub(_as_code, part))
    return re.sub(r"  +", " ", "".join(parts))


def _as_code(match: re.Match[str]) -> str:
    text = match[0].rstrip(".:")
    return f"`{text}`{match[0][len(text) :]}"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
