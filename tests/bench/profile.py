"""Reads the daemons' own times of every RPC from their debug logs."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.report import percentile

_CALL = re.compile(r"daemonkit\.rpc\.interceptors: (?:slow call )?(\S+) server=(\S+) code=(\S+) ms=(\S+)")


Calls = dict[tuple[str, str], list[float]]
"""Milliseconds by daemon and RPC."""


def read(logs: Path) -> Calls:
    """Read all calls in the log."""
    times: Calls = defaultdict(list)
    for log in sorted(logs.glob("*.log")):
        for match in _CALL.finditer(log.read_text(errors="replace")):
            times[log.stem, match[1]].append(float(match[4]))
    return times


def show(times: Calls, console: Console) -> None:
    """Print the RPCs by their total time, including the time of calls to other daemons."""
    table = Table(title="RPCs inside the daemons, one pod after another, ms", title_justify="left")
    table.title_style, table.box = "bold", None
    for column in ("daemon", "RPC", "calls", "p50", "p95", "sum"):
        table.add_column(column, justify="left" if column in ("daemon", "RPC") else "right")
    for (daemon, rpc), values in sorted(times.items(), key=lambda item: -sum(item[1])):
        figures = (percentile(values, 50), percentile(values, 95), sum(values))
        table.add_row(daemon, rpc, str(len(values)), *(f"{figure:.1f}" for figure in figures))
    console.print(table)
