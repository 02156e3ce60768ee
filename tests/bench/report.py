"""Prints the figures as tables: ours, theirs, and ours as a multiple of theirs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.bench import passing, plugins
from tests.bench.growth import PARTS, Growth
from tests.bench.measure import STEPS, Burst, Samples
from tests.bench.memory import Memory
from tests.bench.parts import ANEW, ENCODED, KEPT, PAST, THROUGH, figure
from tests.bench.pulling import PULLS, Sizes, Store
from tests.bench.reading import READS
from tests.bench.streams import WAYS

OURS, THEIRS = "xenpod", "containerd"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Idle daemons, daemons under the crowd, and one pod's own processes (without its containers')."""

    idle: Memory
    crowded: Memory
    pod: Memory


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one runtime."""

    samples: Samples
    burst: Burst
    footprint: Footprint


def percentile(values: Sequence[float], percent: int) -> float:
    """The percentile of values, inclusive and interpolated; of a single value, the value."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def show(figures: Mapping[str, Figures], console: Console) -> None:
    """Print the figures, with columns for the measured runtimes."""
    _times(figures, console)
    _bursts(figures, console)
    _memory(figures, console)


def show_growth(growths: Mapping[str, Growth], console: Console) -> None:
    """Print the medians without and with other pods, with and without the time of the CNI plugins."""
    for name, growth in growths.items():
        before, after = growth.alone.seconds, growth.among.seconds
        columns = {"alone": before, f"among {growth.others} pods": after}
        table = _table(f"how the cost grows: {name}, ms", columns, ("p50",), "growth")
        for step, part in PARTS.items():
            whole = [percentile(side[step], 50) * 1000 for side in (after, before)]
            plugin = [percentile(side[part], 50) * 1000 for side in (after, before)]
            rest = [one - other for one, other in zip(whole, plugin, strict=True)]
            for row, values in ((step, whole), (part, plugin), (f"{step}, without them", rest)):
                ratio = f"{values[0] / values[1]:.2f}" if values[1] > 0 else "-"
                table.add_row(row, *(f"{value:.1f}" for value in reversed(values)), ratio)
        console.print(table)


def show_reads(samples: Mapping[str, Samples], pods: int, console: Console) -> None:
    """Print the times of lists and statistics of the given number of pods."""
    table = _table(f"reading with {pods} pods, ms", samples, ("p50", "p95"))
    for step in READS:
        row: list[float] = []
        for percent in (50, 95):
            row += [percentile(side.seconds[step], percent) * 1000 for side in samples.values()]
        _add(table, step, row, len(samples), "{:.2f}".format)
    console.print(table)


def show_passed(samples: Mapping[str, Samples], pods: int, console: Console) -> None:
    """Print the times of calls about containerd's pods, through xenpod-cri and directly."""
    table = _table(f"containerd's pods (lists: {pods}), ms", samples, ("p50", "p95"))
    for step in passing.STEPS:
        row: list[float] = []
        for percent in (50, 95):
            row += [percentile(side.seconds[step], percent) * 1000 for side in samples.values()]
        _add(table, step, row, len(samples), "{:.2f}".format)
    console.print(table)


def show_parts(samples: Samples, pods: int, console: Console) -> None:
    """Print the cost of the proxy for a call, and the gain from keeping answers encoded."""
    table = _table("the peer-credential proxy, ms", {OURS: samples}, ("p50", "p95"))
    for step in (THROUGH, PAST):
        row = [percentile(samples.seconds[step], percent) * 1000 for percent in (50, 95)]
        _add(table, step, row, 1, "{:.3f}".format)
    console.print(table)
    if pods:
        _encodings(samples, pods, console)


def _encodings(samples: Samples, pods: int, console: Console) -> None:
    """The saving is a part of the time of a whole call with a newly encoded answer."""
    columns = dict.fromkeys((ANEW, KEPT, "whole call"), samples)
    table = _table(f"encoding answers about {pods} pods, µs", columns, ("p50",))
    table.add_column("saved", justify="right", style="bold")
    for rpc in ENCODED:
        steps = (figure(rpc, ANEW), figure(rpc, KEPT), rpc)
        anew, kept, call = (percentile(samples.seconds[step], 50) * 1e6 for step in steps)
        saved = (anew - kept) / (call + anew - kept)
        table.add_row(rpc, f"{anew:.1f}", f"{kept:.1f}", f"{call:.1f}", f"{saved:.0%}")
    console.print(table)


def show_streams(samples: Mapping[str, Samples], mib: int, console: Console) -> None:
    """Print the throughput in a second."""
    table = _table("streams, MiB/s", samples, ("p50",))
    for step in WAYS:
        row = [mib / percentile(side.seconds[step], 50) for side in samples.values()]
        _add(table, step, row, len(samples), "{:.0f}".format)
    console.print(table)


def show_pulls(
    samples: Mapping[str, Samples], stores: Mapping[str, Store], sizes: Sizes, console: Console
) -> None:
    """Seconds of pulls, bytes of the first two images on the disk, and the memory of pulls."""
    mib = f"{sizes.packed >> 20} MiB, unpacked {sizes.unpacked >> 20} MiB"
    table = _table(f"pulls of {mib}, s", samples, ("p50", "p95"))
    for step in PULLS:
        row: list[float] = []
        for percent in (50, 95):
            row += [percentile(side.seconds[step], percent) for side in samples.values()]
        _add(table, step, row, len(samples), "{:.2f}".format)
    console.print(table)
    table = _table("what the images took, MiB", stores, ("",))
    for name, value in (("on the disk, two images", "disk"), ("of memory, at most", "peak")):
        row = [getattr(store, value) / 2**20 for store in stores.values()]
        _add(table, name, row, len(stores), "{:.0f}".format)
    console.print(table)


def _times(figures: Mapping[str, Figures], console: Console) -> None:
    table = _table("one pod after another, ms", figures, ("p50", "p95"))
    for step in (*STEPS, *plugins.STEPS):
        row: list[float] = []
        for percent in (50, 95):
            row += [percentile(side.samples.seconds[step], percent) * 1000 for side in figures.values()]
        _add(table, step, row, len(figures), "{:.1f}".format)
    console.print(table)


def _bursts(figures: Mapping[str, Figures], console: Console) -> None:
    pods = next(iter(figures.values())).burst.pods
    table = _table(f"{pods} pods at once, s", figures, ("",))
    rows: Mapping[str, Callable[[Burst], float]] = {
        "until the last one ran": lambda burst: burst.start,
        "slowest single pod": lambda burst: burst.slowest,
        "until the last one was gone": lambda burst: burst.stop,
    }
    for name, value in rows.items():
        _add(table, name, [value(side.burst) for side in figures.values()], len(figures), "{:.2f}".format)
    console.print(table)


def _memory(figures: Mapping[str, Figures], console: Console) -> None:
    table = _table("memory, MiB", figures, ("RSS", "PSS"))
    rows: Mapping[str, Callable[[Footprint], Memory]] = {
        "daemons, idle": lambda side: side.idle,
        "daemons, with all pods": lambda side: side.crowded,
        "each pod (without its containers)": lambda side: side.pod,
    }
    for name, value in rows.items():
        sides = [value(side.footprint) for side in figures.values()]
        row = [side.rss / 2**20 for side in sides] + [side.pss / 2**20 for side in sides]
        _add(table, name, row, len(figures), "{:.2f}".format)
    console.print(table)


def _table(
    title: str, figures: Mapping[str, object], groups: Sequence[str], comparison: str = "ratio"
) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    table.add_column("", min_width=34)
    for group in groups:
        for name in figures:
            table.add_column(f"{name} {group}".strip(), justify="right")
        if len(figures) == 2:
            table.add_column(comparison, justify="right", style="bold")
    return table


def _add(table: Table, name: str, row: Sequence[float], sides: int, text: Callable[[float], str]) -> None:
    """One row: for each group the sides' values and, of two, the first over the second."""
    cells = [name]
    for at in range(0, len(row), sides):
        values = row[at : at + sides]
        cells += map(text, values)
        if sides == 2:
            cells.append(f"{values[0] / values[1]:.2f}" if values[1] else "-")
    table.add_row(*cells)
