"""The keys of a configuration's classes: type, default, and the accepted numbers."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any

from daemonkit import quantity
from daemonkit.config import Bytes, Seconds, parse

_MIB = 1 << 20
_POWERS = [2**power for power in range(42)]
_NEEDED: Mapping[str, Mapping[str, str]] = {
    "NamedDevice": {"place": "/dev/null"},
    "InjectedFault": {"at": "create", "kind": "fail"},
}
"""Keys required by a table of the class, set while its other keys are tried."""
_NAMES: Mapping[Any, str] = {
    str: "text", int: "number", float: "number", bool: "`true` or `false`",
    Path: "path", Bytes: "size", Seconds: "duration",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table.  ``values``: its possible values, in words.  ``default``: as TOML ("": none)."""

    name: str
    values: str
    default: str


def tables(config: type[Any], at: str = "") -> Iterator[tuple[str, list[Key]]]:
    """The path of each table and its own keys; names chosen in a file are ``NAME`` in the path."""
    hints = typing.get_type_hints(config)
    own = [field for field in fields(config) if _table(hints[field.name]) is None]
    yield at, [_key(config, field, hints[field.name]) for field in own]
    for field in fields(config):
        inner = _table(hints[field.name])
        if inner is not None:
            named = ".NAME" if typing.get_origin(hints[field.name]) not in (None, tuple) else ""
            yield from tables(inner, f"{at}{'.' if at else ''}{field.name}{named}")


def _table(kind: Any) -> type[Any] | None:
    """The class of a table, of a list of tables, or of tables by name.  None: a value."""
    for one in (kind, *typing.get_args(kind)):
        if is_dataclass(one) and isinstance(one, type):
            return one
    return None


def _key(config: type[Any], field: Field[Any], kind: Any) -> Key:
    default = field.default if field.default is not MISSING else None
    if default is None and field.default_factory is not MISSING:
        default = field.default_factory()
    if kind in (int, float, Bytes, Seconds):
        values = f"{_NAMES[kind]}, {_numbers(config, field.name, kind, default or 0)}"
    else:
        values = _values(kind)
    return Key(field.name, values, "" if default is None else toml(kind, default))


def _values(kind: Any) -> str:
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, UnionType):
        return " or ".join(_values(one) for one in arguments if one is not type(None))
    if typing.get_origin(kind) is tuple:
        return f"list of {_values(arguments[0])}s"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f'`"{one.value}"`' for one in kind)
    return _NAMES[kind]


def _numbers(config: type[Any], name: str, kind: Any, default: float) -> str:
    """The numbers accepted by the class while its other keys have their defaults; found by trying."""
    needed = _NEEDED.get(config.__name__, {})

    def accepted(value: float) -> bool:
        try:
            parse(config, {**needed, name: value})
        except ValueError:
            return False
        return True

    # Candidate numbers are multiples of this unit.
    unit = 1 if kind in (int, Bytes) else 0.001
    if kind is Bytes and default and not accepted(default + 1) and accepted(default + _MIB):
        unit = _MIB

    def fine(steps: float) -> bool:
        return accepted(steps * unit)

    def shown(steps: int) -> str:
        return toml(kind, steps * unit).strip('"').removesuffix(".0")

    good = next(steps for steps in (round(default / unit), *_POWERS) if steps and fine(steps))
    low = 1 if fine(1) else _edge(fine, good, 1)
    most = _POWERS[-1] if fine(_POWERS[-1]) else _edge(fine, good, _POWERS[-1])
    # A larger number may be refused for another reason, for example by not dividing another key's value.
    high = "" if any(fine(steps) for steps in _POWERS if steps > most) or most == _POWERS[-1] else shown(most)
    if high and isinstance(unit, float) and fine(most + 0.5):
        high = f"less than {shown(most + 1)}"
    if low == 1 and fine(0):
        return f"0 to {high}" if high else "0 or more"
    if isinstance(unit, float) and fine(low - 0.5):
        return f"more than {shown(low - 1)}" + (f", to {high}" if high else "")
    least = f"{shown(low)} to {high}" if high else f"{shown(low)} or more"
    return f"0, or {least}" if fine(0) else least


def _edge(fine: Callable[[int], bool], good: int, bad: int) -> int:
    """The last accepted number between an accepted and a refused number, by bisection."""
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fine(middle) else (good, middle)
    return good


def _size(value: int) -> str:
    return text if (text := quantity.quantity_text(value)).isdecimal() else f"{text}B"


def _duration(value: float) -> str:
    if not (milliseconds := round(value * 1000)):
        return "0s"
    units = (("h", 3_600_000), ("m", 60_000), ("s", 1000))
    return next(
        (f"{milliseconds // scale}{unit}" for unit, scale in units if not milliseconds % scale),
        f"{milliseconds}ms",
    )


def toml(kind: Any, value: object) -> str:
    """A value of this type in the syntax of a file; sizes and durations with their units."""
    match value:
        case Enum():
            return f'"{value.value}"'
        case bool():
            return str(value).lower()
        case tuple():
            return f"[{', '.join(toml(str, one) for one in value)}]"
        case str() | Path():
            return f'"{value}"'
        case int() | float() if kind in _UNITS:
            text = _UNITS[kind](value)
            return text if text.isdecimal() else f'"{text}"'
    return str(value)


_UNITS: Mapping[Any, Callable[[Any], str]] = {Bytes: _size, Seconds: _duration}
