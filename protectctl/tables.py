"""Prints tables for people: in colour on a terminal (``terminal``), elsewhere as plain columns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import zip_longest

from protectctl.output import plain

_GAP = "  "


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], fold: str = "") -> None:
    """Print a table.  On a narrow terminal the column ``fold`` is folded, and all others are cut."""
    if sys.stdout.isatty():
        from protectctl import terminal

        terminal.print_table(heads, rows, fold)
    else:
        sys.stdout.write(columns([heads, *rows]))


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Print each name with its value.  A name without a value is left out."""
    known = [(name, value) for name, value in rows if value]
    if sys.stdout.isatty():
        from protectctl import terminal

        terminal.print_pairs(known)
    else:
        sys.stdout.write(columns(known))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """The text of a table.  Cells may have several lines; other control characters are escaped."""
    lines = [
        [plain(cell) for cell in line]
        for row in rows
        for line in zip_longest(*(cell.split("\n") for cell in row), fillvalue="")
    ]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    return "".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True))
    return _GAP.join(padded).rstrip() + "\n"


def _width(text: str) -> int:
    """Width in columns of a terminal; wide characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # takes as long to import as a table to print

    return cell_len(text)
