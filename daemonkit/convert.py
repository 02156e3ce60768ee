"""Converts plain values of TOML, JSON and SQLite to typed ones and back: cattrs, made strict.

No value is coerced (a bool is no int, a string is no list), and an error names the path of its key: ``key
'limits.zones': want an integer, got a string``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_origin
from uuid import UUID

from cattrs import ClassValidationError, Converter, ForbiddenExtraKeysError, IterableValidationError
from cattrs.cols import homogenous_tuple_structure_factory, mapping_structure_factory
from cattrs.gen import make_dict_structure_fn

T = TypeVar("T")

# cattrs calls a hook with a value and its type, a runtime annotation; neither has a static type.
Hook = Callable[[Any, Any], Any]

_NAMES: dict[type, str] = {
    str: "a string", int: "an integer", float: "a number", bool: "true or false", bytes: "bytes",
    list: "an array", dict: "a table", type(None): "nothing",
}  # fmt: skip


def strict_converter(*, unknown_keys: bool) -> Converter:
    """A converter for dataclasses, enums, tuples, frozensets, mappings, paths and the plain types.

    ``unknown_keys``: whether to ignore keys of a table that its dataclass does not have.
    """
    converter = Converter(forbid_extra_keys=not unknown_keys)
    for kind in (str, int, float, bool, bytes):
        converter.register_structure_hook(kind, lambda value, kind: expect(kind, value))
    converter.register_structure_hook(Path, _path)
    converter.register_structure_hook(UUID, _uuid)
    converter.register_structure_hook_func(_is_enum, _enum)
    converter.register_structure_hook_factory(_is(tuple), _tuple_hook)
    converter.register_structure_hook_factory(_is(frozenset), _frozenset_hook)
    converter.register_structure_hook_factory(_is(dict, Mapping), _mapping_hook)
    converter.register_structure_hook_factory(is_dataclass, _dataclass_hook)
    converter.register_unstructure_hook(UUID, str)
    converter.register_unstructure_hook_func(_is(frozenset), sorted)
    return converter


def structure(converter: Converter, cls: type[T], value: object, at: str = "") -> T:
    """``value`` as a ``cls``; ValueError names the first wrong key, below the path ``at``."""
    try:
        return converter.structure(value, cls)
    except (ClassValidationError, IterableValidationError, ValueError) as error:
        raise ValueError(next(_reasons(error, at))) from error


def expect(kind: type[T], value: object) -> T:
    """Return ``value`` if exactly of this type; ValueError otherwise."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise wrong(f"want {_name(kind)}, got {_name(type(value))}")
    return value


class WrongValue(ValueError):
    """An invalid value for a key.  (A dataclass's own ValueError is about the whole object.)"""


def wrong(cause: str) -> WrongValue:
    """The error for a hook to raise."""
    return WrongValue(cause)


class WrongKey(ValueError):
    """An invalid value for a key of a dataclass, found by the dataclass itself."""

    def __init__(self, key: str, cause: str) -> None:
        super().__init__(f"key {key!r}: {cause}")
        self.key = key
        self.cause = cause


def exactly(hint: object) -> Callable[[object], bool]:
    """A predicate for the hook of one parametrized type, for example ``tuple[str, ...]``."""
    return lambda other: other == hint


def join(at: str, key: str | int) -> str:
    """The path of a key below ``at``."""
    if isinstance(key, int):
        return f"{at}[{key}]"
    return f"{at}.{key}" if at else key


def _reasons(error: BaseException, at: str) -> Iterator[str]:
    """Every cause in a tree of errors, with its path.

    Unknown keys come first: a misspelt key explains a missing key better than the absence does.
    """
    match error:
        case ClassValidationError():
            keyed, rest = error.group_exceptions()
            for unknown in (one for one in rest if isinstance(one, ForbiddenExtraKeysError)):
                yield _unknown_key(unknown, at)
            for inner, note in keyed:
                path = join(at, note.name)
                yield from (
                    [f"key {path!r} is missing"] if isinstance(inner, KeyError) else _reasons(inner, path)
                )
            for one in (one for one in rest if not isinstance(one, ForbiddenExtraKeysError)):
                yield from _reasons(one, at)
        case IterableValidationError():
            for inner, place in error.group_exceptions()[0]:
                yield from _reasons(inner, join(at, place.index))
        case WrongValue():
            yield f"key {at!r}: {error}" if at else str(error)
        case WrongKey():
            yield f"key {join(at, error.key)!r}: {error.cause}"
        case ValueError():
            yield f"{at}: {error}" if at else str(error)
        case _:
            raise error


def _unknown_key(error: ForbiddenExtraKeysError, at: str) -> str:
    """The reason for an unknown key; a dataclass may give reasons by key in ``NOT_YET``."""
    name = min(error.extra_fields)
    if why := getattr(error.cl, "NOT_YET", {}).get(name):
        return f"key {join(at, name)!r}: {why}"
    known = ", ".join(sorted(field.name for field in fields(error.cl)))
    return f"unknown key {join(at, name)!r}; known here: {known}"


def _name(kind: type) -> str:
    return _NAMES.get(kind, kind.__name__)


def _is(*origins: object) -> Callable[[Any], bool]:
    return lambda hint: get_origin(hint) in origins


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _path(value: object, _: object) -> Path:
    text = expect(str, value)
    if "\0" in text:
        raise wrong("a path cannot contain a NUL character")
    return Path(text)


def _uuid(value: object, _: object) -> UUID:
    text = expect(str, value)
    try:
        return UUID(text)
    except ValueError:
        raise wrong(f"{text!r} is not a UUID") from None


def _enum(value: object, hint: type[Enum]) -> Enum:
    try:
        return hint(value)
    except ValueError:
        choices = ", ".join(repr(member.value) for member in hint)
        raise wrong(f"{value!r} is not one of {choices}") from None


def _tuple_hook(hint: Any, converter: Converter) -> Hook:
    inner: Hook = homogenous_tuple_structure_factory(hint, converter)
    return lambda value, _: inner(expect(list, value), hint)


def _frozenset_hook(hint: Any, converter: Converter) -> Hook:
    inner = _tuple_hook(hint, converter)
    return lambda value, _: frozenset(inner(value, hint))


def _mapping_hook(hint: Any, converter: Converter) -> Hook:
    inner: Hook = mapping_structure_factory(hint, converter)
    return lambda value, _: inner(expect(dict, value), hint)


def _dataclass_hook(cls: Any, converter: Converter) -> Hook:
    """``SHORT`` of the class names a field: a text alone sets this field."""
    inner: Hook = make_dict_structure_fn(cls, converter, _cattrs_use_linecache=False)
    short = getattr(cls, "SHORT", "")
    if not short:
        return lambda value, _: inner(expect(dict, value), cls)
    return lambda value, _: inner({short: value} if isinstance(value, str) else expect(dict, value), cls)
