"""Scales of a chart: where ticks are, and how Grafana's units are written."""

from __future__ import annotations

import math
from collections.abc import Iterable

_TICKS = 4
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SHORT = ((1e9, "G"), (1e6, "M"), (1e3, "K"))


def ticks(highest: float, unit: str) -> list[float]:
    """Values from 0 on, at most some five, the last one at or above ``highest``."""
    if highest <= 0:
        return [0.0, 1.0]
    base = 1024.0 if unit in ("bytes", "Bps") and highest >= 1024 else 10.0
    scale = base ** math.floor(math.log(highest, base))
    # Of bytes: powers of two; else 1, 2, 5 times a power of ten.
    steps = [scale / 1024 * 2**n for n in range(21)] if base == 1024 else _tens(scale)
    step = next(one for one in steps if highest / one <= _TICKS)
    return [step * n for n in range(math.ceil(highest / step) + 1)]


def _tens(scale: float) -> list[float]:
    return [scale * factor for factor in (0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5, 10)]


def written(value: float, unit: str) -> str:
    """A value in its unit, as short as it can be: ``1.5 GiB``, ``20 ms``, ``2.5 K``, ``0.25``."""
    if unit in ("bytes", "Bps"):
        power = min(int(math.log(value, 1024)), len(_BINARY) - 1) if value >= 1 else 0
        return f"{_number(value / 1024**power)} {_BINARY[power]}{'/s' if unit == 'Bps' else ''}"
    table: Iterable[tuple[float, str]] = _SECONDS if unit == "s" else _SHORT
    if value == 0:
        return "0 s" if unit == "s" else "0"
    for size, name in table:
        if abs(value) >= size * (1 - 1e-9):
            return f"{_number(value / size)} {name}"
    return f"{_number(value)}{' s' if unit == 's' else ''}"


def _number(value: float) -> str:
    text = f"{value:.3g}"
    return f"{float(text):.0f}" if "e" in text else text
