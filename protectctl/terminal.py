"""Tables on a terminal: in colour, cut to its width.  Imported only for terminals, since rich is slow."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

_STATE_STYLES = {
    "running": "green",
    "dead": "red",
    "creating": "yellow",
    "paused": "yellow",
    "destroying": "yellow",
}


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], fold: str) -> None:
    """On a narrow terminal the column ``fold`` is folded, and all others are cut."""
    Console().print(_table(heads, rows, fold))


def print_pairs(rows: Sequence[tuple[str, str]]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    Console().print(table)


class LiveTable:
    """A table drawn again and again on the alternate screen: the terminal's old content comes back."""

    def __init__(self) -> None:
        self._live = Live(console=Console(), screen=True, auto_refresh=False)

    def __enter__(self) -> LiveTable:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, where)

    def show(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._live.update(Group(Text(title), _table(heads, rows)), refresh=True)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], fold: str = "") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        if head == fold:
            table.add_column(head, overflow="fold")
        else:
            table.add_column(head, no_wrap=True)
    for row in rows:
        # As text, not as markup: names are untrusted.
        table.add_row(*(Text(cell, style=_STATE_STYLES.get(cell, "")) for cell in row))
    return table
