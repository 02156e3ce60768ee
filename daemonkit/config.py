"""Configuration: reads one TOML file into one frozen dataclass; errors name the key.

Supported field types: ``str``, ``int``, ``float``, ``bool``, ``Path``, ``Bytes``, ``Seconds``,
enums (by value), ``X | None``, ``tuple[X, ...]``, ``Mapping[str, X]`` and nested dataclasses (TOML tables).
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NewType, TypeVar

from cattrs import Converter

from daemonkit.convert import expect, strict_converter, structure, wrong
from daemonkit.faults import Invalid, Missing

Bytes = NewType("Bytes", int)
"""A size; in TOML a number of bytes or a text such as ``"256MiB"``."""

Seconds = NewType("Seconds", float)
"""A duration; in TOML a number of seconds or a text such as ``"10s"``, ``"250ms"``, ``"2m"``."""

T = TypeVar("T")
N = TypeVar("N", int, float)

_READ = "read configuration"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)?")
_SIZE_UNITS = {
    None: 1, "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_SIZE_LIMIT = 2**63
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_TIME_UNITS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def load(cls: type[T], path: Path) -> T:
    """Read the file into a ``cls``.  Missing: there is no such file; Invalid: something in it is wrong."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError:
        raise Missing(_READ, str(path), "no such file") from None
    except OSError as error:
        raise Invalid(_READ, str(path), error.strerror or str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(_READ, str(path), f"not TOML: {error}") from error
    except RecursionError:
        raise Invalid(_READ, str(path), "nested too deeply") from None
    try:
        return parse(cls, table)
    except ValueError as error:
        raise Invalid(_READ, str(path), str(error)) from error


def parse(cls: type[T], table: Mapping[str, object], at: str = "") -> T:
    """Build ``cls`` from a table; ValueError names the key that is wrong, below the path ``at``."""
    return structure(_toml, cls, table, at)


def size(text: str) -> Bytes:
    """``"256MiB"``, ``"1.5GiB"``, ``"10MB"``, ``"4096"`` as bytes; ValueError otherwise."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 256MiB")
    number = float(match[1]) * _SIZE_UNITS[match[2]]
    if number >= _SIZE_LIMIT:
        raise ValueError(f"{text!r} is more than any machine has")
    return Bytes(int(number))


def duration(text: str) -> Seconds:
    """``"10s"``, ``"250ms"``, ``"2m"``, ``"1h"`` as seconds; ValueError otherwise."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 10s")
    seconds = float(match[1]) * _TIME_UNITS[match[2]]
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r} is longer than anything lasts")
    return Seconds(seconds)


def at_least(least: int, table: object, *keys: str) -> None:
    """For a table's ``__post_init__``: raise ValueError when a key's value is less than ``least``."""
    for key in keys:
        if (value := getattr(table, key)) < least:
            raise ValueError(f"key {key!r}: {value} is less than {least}")


def longer_than_nothing(table: object, *keys: str) -> None:
    """For a table's ``__post_init__``: raise ValueError when a key's duration is 0."""
    for key in keys:
        if getattr(table, key) <= 0:
            raise ValueError(f"key {key!r}: want a duration of more than 0")


def _bytes(value: object, _: object) -> Bytes:
    if isinstance(value, int) and not isinstance(value, bool):
        return Bytes(_not_negative(value))
    return _parsed(size, value)


def _seconds(value: object, _: object) -> Seconds:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(_not_negative(value)):
            raise wrong(f"{value} is no duration")
        return Seconds(float(value))
    return _parsed(duration, value)


def _not_negative(number: N) -> N:
    if number < 0:
        raise wrong(f"{number} is negative")
    return number


def _parsed(parser: Callable[[str], T], value: object) -> T:
    text = expect(str, value)
    try:
        return parser(text)
    except ValueError as error:
        raise wrong(str(error)) from None


def _float(value: object, _: object) -> float:
    """TOML writes 2 for 2.0."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else expect(float, value)


def _toml_converter() -> Converter:
    converter = strict_converter(unknown_keys=False)
    converter.register_structure_hook(Bytes, _bytes)
    converter.register_structure_hook(Seconds, _seconds)
    converter.register_structure_hook(float, _float)
    return converter


_toml = _toml_converter()
