"""Writes the part of TOML for configuration files: tables, strings, numbers, booleans, lists."""

from __future__ import annotations

import json
from collections.abc import Mapping

Table = Mapping[str, object]


def dumps(table: Table) -> str:
    """Write ``table`` as TOML.  TypeError: a value cannot be written."""
    return "".join(_lines(table, ()))


def merged(over: Table, under: Table) -> dict[str, object]:
    """``over`` with the keys found only in ``under``, table by table."""
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(value, below) if both else value  # type: ignore[arg-type]  # both are tables
    return result


def _lines(table: Table, path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"\n[{'.'.join(map(_string, path))}]\n"] if path else []
    lines += [f"{_string(key)} = {_value(value)}\n" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines(value, (*path, key))
    return lines


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise TypeError(f"{type(value).__name__} has no place in TOML here")


def _string(text: str) -> str:
    """A TOML basic string: as in JSON, but without surrogate pairs, and with DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
