"""Requests with one hostile value each, in every field, at every depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
_Reach = Callable[[Any], Any]
"""From a request to a message in the request, which is created if missing."""

TEXTS: Sequence[str] = (
    "\n",
    "a\0b",
    "../../../../etc/shadow",
    "/proc/self/root/../x",
    "%s%n{0}{x.__class__}",
    "é\u202e\u2028\U0010ffff",
    "-rf",
    "x" * 70_000,
    "/" * 5_000,
    "1e999",
    "\u0661\u00b2",
)
_WHOLE = (0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**31), -(2**63))
_BYTES = (b"\0", b"\xff" * 300, b"{" * 100_000)
_RANGES = {
    Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT32: (0, 2**32 - 1),
    Field.CPPTYPE_UINT64: (0, 2**64 - 1),
    Field.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
_DEPTH = 6
_MANY = 1_000


def hostile(good: M) -> Iterator[tuple[str, M]]:
    """Copies of a good request with one changed field: the field's name and its new value."""
    for said, change in _changes(cast(Descriptor, good.DESCRIPTOR), lambda request: request, "", _DEPTH):
        bad = type(good)()
        bad.CopyFrom(good)
        change(bad)
        yield said, bad


def _changes(
    kind: Descriptor, reach: _Reach, above: str, depth: int
) -> Iterator[tuple[str, Callable[[Any], object]]]:
    """Yield changes to a request, each with a description: the field, and its hostile value."""
    for field in kind.fields:
        name, said = field.name, f"{above}{field.name}"
        below = field.message_type
        if below is not None and below.GetOptions().map_entry:
            for text in TEXTS:
                yield f"{said}[{text!r:.24}]", partial(_set_key, reach, name, text)
        elif below is not None:
            into: _Reach = partial(_below, reach, name)
            if depth:
                yield said, partial(_set_there, into)
                yield from _changes(below, into, f"{said}.", depth - 1)
        elif field.is_repeated:
            for value in (values := _values(field)):
                yield f"{said} has {value!r:.24}", partial(_extend, reach, name, [value])
            yield f"{said} has many", partial(_extend, reach, name, [*values[:1]] * _MANY)
        else:
            for value in _values(field):
                yield f"{said} = {value!r:.24}", partial(_set, reach, name, value)


def _below(reach: _Reach, name: str, request: Any) -> Any:
    """The message in a field; the last of several, created if missing."""
    found = getattr(reach(request), name)
    if isinstance(found, Message):
        return found
    return found[-1] if found else found.add()


def _set(reach: _Reach, name: str, value: object, request: Any) -> None:
    setattr(reach(request), name, value)


def _set_there(reach: _Reach, request: Any) -> None:
    reach(request).SetInParent()


def _set_key(reach: _Reach, name: str, text: str, request: Any) -> None:
    getattr(reach(request), name).update({text: text})


def _extend(reach: _Reach, name: str, values: Sequence[object], request: Any) -> None:
    getattr(reach(request), name).extend(values)


def _values(field: Field) -> Sequence[Any]:
    match field.cpp_type:
        case Field.CPPTYPE_STRING:
            return _BYTES if field.type == Field.TYPE_BYTES else TEXTS
        case Field.CPPTYPE_BOOL:
            return (True, False)
        case Field.CPPTYPE_DOUBLE | Field.CPPTYPE_FLOAT:
            return (float("nan"), float("inf"), -1.0, 1e300)
    low, high = _RANGES[field.cpp_type]
    return [value for value in _WHOLE if low <= value <= high]
