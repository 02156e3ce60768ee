"""Configuration: one TOML file into one frozen dataclass, with errors that name the key.

Supported field types: ``str``, ``int``, ``float``, ``bool``, ``Path``, ``Bytes``, ``Seconds``,
enums (by value), ``X | None``, ``tuple[X, ...]``, ``Mapping[str, X]`` and nested dataclasses (TOML tables).
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from daemonkit.faults import Invalid, Missing

Bytes = NewType("Bytes", int)
"""A size; in TOML a number of bytes or a text such as ``"256MiB"``."""

Seconds = NewType("Seconds", float)
"""A duration; in TOML a number of seconds or a text such as ``"10s"``, ``"250ms"``, ``"2m"``."""

T = TypeVar("T")

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
    """Read ``path`` into ``cls``.  Missing: no such file; Invalid: anything wrong in it."""
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
    """Build ``cls`` from a table; ValueError names the key that is wrong."""
    hints = get_type_hints(cls)
    # cast: mypy has no type for "a dataclass type" that fields() takes here
    known = {field.name: field for field in fields(cast(Any, cls))}
    if unknown := sorted(set(table) - set(known)):
        raise ValueError(f"unknown key {_join(at, unknown[0])!r}; known here: {', '.join(sorted(known))}")
    values: dict[str, object] = {}
    for name, field in known.items():
        if name in table:
            values[name] = _convert(hints[name], table[name], _join(at, name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"key {_join(at, name)!r} is missing")
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{at}: {error}" if at else str(error)) from error


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
    """For a table's ``__post_init__``: ValueError for a key with less."""
    for key in keys:
        if (value := getattr(table, key)) < least:
            raise ValueError(f"key {key!r}: {value} is less than {least}")


def longer_than_nothing(table: object, *keys: str) -> None:
    """For a table's ``__post_init__``: ValueError for a duration of 0."""
    for key in keys:
        if getattr(table, key) <= 0:
            raise ValueError(f"key {key!r}: want a duration of more than 0")


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _convert(hint: Any, value: object, at: str) -> object:
    """One TOML value as the type ``hint`` (a runtime annotation, hence Any)."""
    if hint is Bytes or hint is Seconds:
        return _quantity(hint, value, at)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        inner = [arg for arg in get_args(hint) if arg is not NoneType]
        return _convert(inner[0], value, at)
    if origin is tuple:
        items = _expect(list, value, at)
        return tuple(_convert(get_args(hint)[0], item, f"{at}[{n}]") for n, item in enumerate(items))
    if origin in (dict, Mapping):
        entries = _expect(dict, value, at)
        return {key: _convert(get_args(hint)[1], item, _join(at, key)) for key, item in entries.items()}
    if is_dataclass(hint):
        return parse(cast(type[object], hint), _expect(dict, value, at), at)
    if issubclass(hint, Enum):
        return _enum(hint, value, at)
    if hint is Path:
        if "\0" in (text := _expect(str, value, at)):
            raise ValueError(f"key {at!r}: a path cannot contain a NUL character")
        return Path(text)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _expect(hint, value, at)


def _quantity(hint: Any, value: object, at: str) -> object:
    number = isinstance(value, int) or (hint is Seconds and isinstance(value, float))
    if number and not isinstance(value, bool):
        if cast(float, value) < 0:
            raise ValueError(f"key {at!r}: {value} is negative")
        if not math.isfinite(cast(float, value)):
            raise ValueError(f"key {at!r}: {value} is no duration")
        return float(cast(float, value)) if hint is Seconds else value
    text = _expect(str, value, at)
    try:
        return size(text) if hint is Bytes else duration(text)
    except ValueError as error:
        raise ValueError(f"key {at!r}: {error}") from None


def _enum(hint: type[Enum], value: object, at: str) -> Enum:
    try:
        return hint(value)
    except ValueError:
        choices = ", ".join(repr(member.value) for member in hint)
        raise ValueError(f"key {at!r}: {value!r} is not one of {choices}") from None


def _expect(kind: type[T], value: object, at: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"key {at!r}: want {_TOML_NAMES.get(kind, kind.__name__)}, got {_name_of(value)}")
    return value


_TOML_NAMES: dict[type, str] = {str: "a string", int: "an integer", float: "a number", bool: "true or false",
                                list: "an array", dict: "a table"}  # fmt: skip


def _name_of(value: object) -> str:
    return _TOML_NAMES.get(type(value), type(value).__name__)
