"""Prints the demo: steps with their times, and blocks of text, coloured on a terminal."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WHAT = 46
_LIMIT_CHARACTERS = 400
_PICTURE_COLUMNS = 110
_FONT = re.compile(r"@font-face \{.*?\}\n", re.DOTALL)


class Screen:
    """Prints a line for each step: a mark, the step's action, its time, its result.

    ``recorded``: keeps the output for ``picture``, for any width of the terminal.
    """

    def __init__(self, *, recorded: bool = False) -> None:
        self._recorded = recorded
        width = _PICTURE_COLUMNS if recorded else None
        self._console = Console(highlight=False, record=recorded, width=width)

    def picture(self, path: Path, title: str) -> None:
        """Write all output as an SVG of a terminal."""
        svg = self._console.export_svg(title=title, unique_id="terminal")
        # In a page, the SVG loads no font from elsewhere; the reader's own monospace font does.
        svg = _FONT.sub("", svg)
        path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")

    def title(self, text: str) -> None:
        self._console.print(Text(f"\n{text}\n", style="bold"))

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        """Time the block; yields a function that takes a few words about the result."""
        result = ""

        def done(text: str) -> None:
            nonlocal result
            result = text

        begun = time.monotonic()
        busy = (
            self._console.status(what)
            if self._console.is_terminal and not self._recorded
            else contextlib.nullcontext()
        )
        try:
            with busy:
                yield done
        except BaseException:
            self._line("✗", "bold red", what, time.monotonic() - begun, "")
            raise
        self._line("✓", "bold green", what, time.monotonic() - begun, result)

    def block(self, text: str) -> None:
        """Print untrusted output of the container, bounded and without control characters."""
        shown = text[:_LIMIT_CHARACTERS] + ("..." if len(text) > _LIMIT_CHARACTERS else "")
        for line in shown.rstrip("\n").split("\n"):
            clean = "".join(c if c.isprintable() else "?" for c in line)
            self._console.print(Text(f"      │ {clean}", style="cyan"), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._console.print()
        self._console.print(table)
        self._console.print()

    def note(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))

    def warn(self, text: str) -> None:
        self._console.print(Text(text, style="yellow"), soft_wrap=True)

    def failed(self, cause: str, logs: str) -> None:
        self._console.print(Text(f"\nfailed: {cause}", style="bold red"), soft_wrap=True)
        self._console.print(Text(logs, style="dim"), soft_wrap=True)

    def _line(self, mark: str, style: str, what: str, seconds: float, result: str) -> None:
        line = Text("  ").append(mark, style=style).append(f" {what:<{_WHAT}}")
        line.append(f"{seconds * 1000:7.0f} ms", style="magenta").append(f"   {result}", style="dim")
        self._console.print(line, soft_wrap=True)
