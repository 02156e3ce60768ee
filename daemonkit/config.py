"""Configuration: reads a TOML file into a frozen dataclass; errors name the key.

Supported field types: ``str``, ``int``, ``float``, ``bool``, ``Path``, ``Bytes``, ``Seconds``, enums (by
value), ``X | None``, ``tuple[X, ...]``, ``Mapping[str, X]`` and nested dataclasses (TOML tables).
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NewType, TypeVar

from cattrs import Converter

from daemonkit.convert import WrongKey, expect, strict_converter, structure, wrong
from daemonkit.faults import Invalid, Missing
from daemonkit.logs import LEVELS

Bytes = NewType("Bytes", int)
"""A size; in TOML a number of bytes or a text, for example ``"256MiB"``."""

Seconds = NewType("Seconds", float)
"""A duration; in TOML a number of seconds or a text, for example ``"10s"``, ``"250ms"``, ``"2m"``."""

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
_SOCKET_PATH_BYTES = 107
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_TIME_UNITS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def load_config(cls: type[T], path: Path, *, unknown_keys: bool = False) -> T:
    """Read the file into a ``cls``.  Missing: no file; Invalid: a wrong content.

    ``unknown_keys``: whether tables may have keys missing in ``cls``, for a reader of another program's file.
    """
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
        return parse(cls, table, unknown_keys=unknown_keys)
    except ValueError as error:
        raise Invalid(_READ, str(path), str(error)) from error


def parse(cls: type[T], table: Mapping[str, object], at: str = "", *, unknown_keys: bool = False) -> T:
    """Build ``cls`` from a table; ValueError names the wrong key, below the path ``at``."""
    return structure(_lenient if unknown_keys else _strict, cls, table, at)


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


@contextlib.contextmanager
def about(path: Path) -> Iterator[None]:
    """Raise a WrongKey of the block as Invalid with the file's name."""
    try:
        yield
    except WrongKey as error:
        raise Invalid(_READ, str(path), str(error)) from error
    except BaseExceptionGroup as group:  # from a task group that the block ended
        found, rest = group.split(WrongKey)
        if found is None or rest is not None:
            raise
        raise Invalid(_READ, str(path), str(_first(found))) from group


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# For a table's __post_init__; each raises WrongKey.


def at_least(least: float, table: object, *keys: str) -> None:
    """Refuse a number less than ``least``."""
    for key in keys:
        if (value := getattr(table, key)) < least:
            raise WrongKey(key, f"{value} is less than {least}")


def at_most(most: float, table: object, *keys: str) -> None:
    """Refuse a number more than ``most``."""
    for key in keys:
        if (value := getattr(table, key)) > most:
            raise WrongKey(key, f"{value} is more than {most}")


def longer_than_nothing(table: object, *keys: str) -> None:
    """Refuse a duration of 0 or less."""
    for key in keys:
        if not getattr(table, key) > 0:
            raise WrongKey(key, "want a duration of more than 0")


def absolute(table: object, *keys: str) -> None:
    """Refuse an empty or relative path, alone or in a list.  None is fine."""
    for key in keys:
        value: Path | tuple[Path, ...] | None = getattr(table, key)
        for path in value if isinstance(value, tuple) else () if value is None else (value,):
            if not path.is_absolute():
                raise WrongKey(key, f"{str(path)!r} is not an absolute path")


def socket_path(key: str, path: Path) -> None:
    """Refuse a path too long for a unix socket (unix(7), sun_path)."""
    if len(bytes(path)) > _SOCKET_PATH_BYTES:
        raise WrongKey(key, f"{path} is longer than the {_SOCKET_PATH_BYTES} bytes of a unix socket's path")


def log_level(table: object, key: str = "log_level") -> None:
    """Refuse a text other than a level of ``daemonkit.logs``."""
    if (level := getattr(table, key)).lower() not in LEVELS:
        raise WrongKey(key, f"{level!r:.80} is not one of {', '.join(LEVELS)}")


def existing_file(key: str, path: Path | None) -> None:
    """Refuse a file that is missing, unreadable, or no plain file.  None is fine."""
    if path is None:
        return
    try:
        # Without O_NONBLOCK a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise WrongKey(key, f"{path}: {error.strerror or error}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise WrongKey(key, f"{path} is not a file")
    finally:
        os.close(descriptor)


def existing_directory(key: str, path: Path) -> None:
    """Refuse a missing directory."""
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            raise WrongKey(key, f"{path} is not a directory")
    except OSError as error:
        raise WrongKey(key, f"{path}: {error.strerror or error}") from None


def _bytes(value: object, _: object) -> Bytes:
    if isinstance(value, int) and not isinstance(value, bool):
        if _not_negative(value) >= _SIZE_LIMIT:
            raise wrong(f"{value} is more than any machine has")
        return Bytes(value)
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
    """A hook for floats; TOML may write a float as an integer."""
    number = float(value) if isinstance(value, int) and not isinstance(value, bool) else expect(float, value)
    if not math.isfinite(number):
        raise wrong(f"{value} is no number")
    return number


def _integer(value: object, _: object) -> int:
    """A hook for integers that enforces TOML's own limit, because Python's parser does not."""
    number = expect(int, value)
    if not -_SIZE_LIMIT <= number < _SIZE_LIMIT:
        raise wrong("it is an integer of more than 64 bits")
    return number


def _toml_converter(*, unknown_keys: bool) -> Converter:
    converter = strict_converter(unknown_keys=unknown_keys)
    converter.register_structure_hook(Bytes, _bytes)
    converter.register_structure_hook(Seconds, _seconds)
    converter.register_structure_hook(float, _float)
    converter.register_structure_hook(int, _integer)
    return converter


_strict = _toml_converter(unknown_keys=False)
_lenient = _toml_converter(unknown_keys=True)
