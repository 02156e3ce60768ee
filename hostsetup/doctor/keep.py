"""Values of configuration files that may stay in a bundle, by key and kind; all others are removed.

A list of secrets could not be complete.  A text stays only if the text is a known word, or has a form that
carries no secret: a size, a duration, an address, a version.
"""

from __future__ import annotations

import ipaddress
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

GONE = "[redacted]"
ANY = "*"
"""In a table of rules: any short plain name, for example of a handler."""

_UNITS = "B|kB|MB|GB|TB|[KMGT]iB|[KMGT]i|[kMGT]|m|ms|s|h|%"
_AMOUNT = re.compile(rf"\d{{1,19}}(\.\d{{1,9}})?({_UNITS})")
_DURATION = re.compile(r"(\d{1,9}h)?(\d{1,9}m)?(\d{1,9}s)?")
_VERSION = re.compile(r"v?\d{1,4}(\.\d{1,4}){1,2}")
_ORIGIN = re.compile(r"https?://[a-z0-9.-]{1,253}(:\d{1,5})?/?")
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


class Form(Enum):
    """Forms of values that carry no secret."""

    NUMBER = "a number, a size or a duration"
    FLAG = "true or false"
    ADDRESS = "an IP address or network"
    VERSION = "a version"
    ORIGIN = "a URL of a host, without a user and a path"


Rule: TypeAlias = "Form | frozenset[str] | Mapping[str, Rule]"
"""Allowed values: a form, a set of words, or a table.  The rule of a list applies to each item."""


def kept(untrusted: object, rule: Rule) -> object:
    """The allowed part of the value, as plain dicts, lists and scalars."""
    if isinstance(untrusted, list):
        return [kept(one, rule) for one in untrusted]
    if isinstance(rule, Mapping):
        return _table(untrusted, rule) if isinstance(untrusted, Mapping) else GONE
    if isinstance(rule, frozenset):
        return untrusted if isinstance(untrusted, str) and untrusted in rule else GONE
    return untrusted if _HAS_FORM[rule](untrusted) else GONE


def _table(untrusted: Mapping[Any, object], rules: Mapping[str, Rule]) -> dict[str, object]:
    found: dict[str, object] = {}
    hidden = 0
    for key, value in untrusted.items():
        rule = rules.get(key)
        if rule is None and isinstance(key, str) and (_PLAIN.fullmatch(key) or _ORIGIN.fullmatch(key)):
            rule = rules.get(ANY)
        if rule is None:
            hidden += 1
        else:
            found[key] = kept(value, rule)
    return found | ({GONE: f"{hidden} other keys"} if hidden else {})


def rules_of(table: type[Any]) -> dict[str, Rule]:
    """The rules of a configuration's dataclass: numbers, flags, enums stay, and texts like the default."""
    hints = typing.get_type_hints(table)
    return {one.name: _rule(hints[one.name], one) for one in fields(table)}


def _rule(hint: Any, field: Field[Any]) -> Rule:
    supertype = getattr(hint, "__supertype__", hint)  # of a NewType
    if is_dataclass(hint):
        return rules_of(typing.cast("type[Any]", hint))
    if typing.get_origin(hint) is not None and issubclass(typing.get_origin(hint), Mapping):
        return {ANY: _rule(typing.get_args(hint)[1], field)}
    if typing.get_origin(hint) is tuple and is_dataclass(inner := typing.get_args(hint)[0]):
        return rules_of(typing.cast("type[Any]", inner))
    if supertype is bool:
        return Form.FLAG
    if supertype in (int, float):
        return Form.NUMBER
    if isinstance(hint, type) and issubclass(hint, Enum):
        return frozenset(str(one.value) for one in hint)
    default = field.default
    said = default if isinstance(default, tuple) else (default,)
    return frozenset(str(one) for one in said if isinstance(one, str | Path))


def _number(value: object) -> bool:
    if isinstance(value, str):
        return bool(_AMOUNT.fullmatch(value) or (value and _DURATION.fullmatch(value)))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _address(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(ipaddress.ip_interface(value))
    except ValueError:
        return False


_HAS_FORM: Mapping[Form, Callable[[object], bool]] = {
    Form.NUMBER: _number,
    Form.FLAG: lambda value: isinstance(value, bool),
    Form.ADDRESS: lambda value: _address(value) and "%" not in str(value),
    Form.ORIGIN: lambda value: isinstance(value, str) and bool(_ORIGIN.fullmatch(value)),
    Form.VERSION: lambda value: isinstance(value, str) and bool(_VERSION.fullmatch(value)),
}
