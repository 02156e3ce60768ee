"""Prints the honest tenant's figures alone and beside attackers of xenpod-cri."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from tests.bench.neighbours.attacked import ALL, Attacked
from tests.bench.neighbours.honest import STEPS

GOALS = {50: 2.0, 99: 3.0}
"""Of the ratios, by percentile."""
ALL_GOAL = 4.0
"""Of every ratio beside all kinds at once, on two CPUs."""
MEMORY_GOAL = 512
"""MiB of both daemons together."""


def show(found: Sequence[Attacked], console: Console) -> None:
    """Ratios to the figures alone in the same run, milliseconds, calls without an answer, memory, CPUs."""
    for percent, goal in GOALS.items():
        title = f"an honest tenant's calls, p{percent}: times the figure alone "
        _print(console, f"{title}(goal: {goal:g}, {ALL}: {ALL_GOAL:g})", STEPS, found, _ratio(percent))
    for percent in GOALS:
        _print(console, f"p{percent}, ms alone and beside attackers", STEPS, found, _both(percent))
    _print(console, "calls beside attackers: answered, late, failed", STEPS, found, _calls)
    columns = ("idle", "most", "after", "workers, most", "attackers", "daemons")
    title = f"memory of both daemons together, MiB (goal: {MEMORY_GOAL}, after 30 s as idle), and busy CPUs"
    _print(console, title, columns, found, _cost)
    for row in found:
        if row.failed:
            console.print(f"{row.name}: no figures: {row.failed}")
        for kind, outcomes in row.outcomes.items():
            console.print(f"{row.name}: {kind}: {dict(outcomes)}")
        for step, errors in row.beside.errors.items():
            console.print(f"{row.name}: {step} failed: {dict(errors)}")


def _print(
    console: Console,
    title: str,
    columns: Sequence[str],
    found: Sequence[Attacked],
    cell: Callable[[Attacked, str], str],
) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    table.add_column("attackers", min_width=30)
    for column in columns:
        table.add_column(column, justify="right")
    for row in found:
        table.add_row(row.name, *(cell(row, column) for column in columns))
    console.print(table)


def _ratio(percent: int) -> Callable[[Attacked, str], str]:
    def cell(row: Attacked, step: str) -> str:
        alone, beside = (answers.percentile(step, percent) for answers in (row.alone, row.beside))
        if alone is None:
            return "-"
        if beside is not None:
            return f"{beside / alone:.2f}"
        if not row.beside.late[step]:
            return "-"
        return f">{row.beside.patience / alone:.0f}"

    return cell


def _both(percent: int) -> Callable[[Attacked, str], str]:
    def cell(row: Attacked, step: str) -> str:
        shown = []
        for answers in (row.alone, row.beside):
            value = answers.percentile(step, percent)
            late = f">{answers.patience * 1000:.0f}" if answers.late[step] else "-"
            shown.append(late if value is None else f"{value * 1000:.1f}")
        return " to ".join(shown)

    return cell


def _calls(row: Attacked, step: str) -> str:
    errors = row.beside.errors[step].total() if step in row.beside.errors else 0
    return f"{len(row.beside.seconds[step])}, {row.beside.late[step]}, {errors}"


def _cost(row: Attacked, column: str) -> str:
    if column in ("attackers", "daemons"):
        return f"{row.cpus.get(column, 0):.2f}"
    found = row.memory
    of = {"idle": found.idle, "most": found.peak, "after": found.after, "workers, most": found.workers}
    return f"{of[column] / 2**20:.0f}"
