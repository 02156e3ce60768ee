"""The strict converter: no coercion, no string for a list, errors with the path of the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NewType
from uuid import UUID

import pytest

from daemonkit.convert import strict_converter, structure

Number = NewType("Number", int)
SOME_ID = UUID("12345678-1234-5678-1234-567812345678")


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Leaf:
    number: Number = Number(0)
    small: int = 0

    def __post_init__(self) -> None:
        if self.small > 9:
            raise ValueError("small is large")
        if self.small < 0:
            raise KeyError("a bug")


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    on: bool = False
    ratio: float = 0.0
    data: bytes = b""
    where: Path | None = None
    id: UUID | None = None
    colour: Colour = Colour.RED
    words: tuple[str, ...] = ()
    kinds: frozenset[str] = frozenset()
    leaf: Leaf = Leaf()
    leaves: Mapping[str, tuple[Leaf, ...]] = field(default_factory=dict)


WHOLE: dict[str, Any] = {
    "name": "n",
    "on": True,
    "ratio": 0.5,
    "data": b"x",
    "where": "/a",
    "id": str(SOME_ID),
    "colour": "red",
    "words": ["a", "b"],
    "kinds": ["c"],
    "leaf": {"number": 3},
    "leaves": {"k": [{"small": 1}, {}]},
}


def test_every_kind_is_structured() -> None:
    assert structure(strict_converter(unknown_keys=False), Tree, WHOLE) == Tree(
        "n", True, 0.5, b"x", Path("/a"), SOME_ID, Colour.RED, ("a", "b"), frozenset({"c"}),
        Leaf(Number(3)), {"k": (Leaf(small=1), Leaf())},
    )  # fmt: skip


def test_none_is_accepted_for_optional_keys() -> None:
    converter = strict_converter(unknown_keys=False)
    assert structure(converter, Tree, {"name": "n", "where": None, "id": None}) == Tree("n")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"name": 1}, "key 'name': want a string, got an integer"),
        ({"name": None}, "key 'name': want a string, got nothing"),
        ({"on": 1}, "key 'on': want true or false, got an integer"),
        ({"ratio": True}, "key 'ratio': want a number, got true or false"),
        ({"data": "x"}, "key 'data': want bytes, got a string"),
        ({"where": 1}, "key 'where': want a string, got an integer"),
        ({"where": "a\0b"}, "key 'where': a path cannot contain a NUL character"),
        ({"id": "1"}, "key 'id': '1' is not a UUID"),
        ({"colour": ["red"]}, "key 'colour': ['red'] is not one of 'red'"),
        ({"words": "ab"}, "key 'words': want an array, got a string"),
        ({"words": ["a", 1]}, "key 'words[1]': want a string, got an integer"),
        ({"kinds": {"c": 1}}, "key 'kinds': want an array, got a table"),
        ({"kinds": ["c", 1]}, "key 'kinds[1]': want a string, got an integer"),
        ({"leaf": [1]}, "key 'leaf': want a table, got an array"),
        ({"leaf": {"number": "1"}}, "key 'leaf.number': want an integer, got a string"),
        ({"leaf": {"number": True}}, "key 'leaf.number': want an integer, got true or false"),
        ({"leaf": {"small": 10}}, "leaf: small is large"),
        ({"leaves": []}, "key 'leaves': want a table, got an array"),
        ({"leaves": {"k": [{}, {"small": "1"}]}}, "key 'leaves.k[1].small': want an integer, got a string"),
        ({"leaves": {"k": [{"small": 10}]}}, "leaves.k[0]: small is large"),
        ({"leaves": {"k": [{"smal": 1}]}}, "unknown key 'leaves.k[0].smal'; known here: number, small"),
    ],
)
def test_error_names_the_path_of_the_key(changes: dict[str, Any], cause: str) -> None:
    converter = strict_converter(unknown_keys=False)
    with pytest.raises(ValueError) as caught:
        structure(converter, Tree, {**WHOLE, **changes})
    assert str(caught.value) == cause


def test_the_path_begins_where_the_caller_says() -> None:
    converter = strict_converter(unknown_keys=False)
    with pytest.raises(ValueError, match=r"^key 'row\[3\]\.name' is missing$"):
        structure(converter, Tree, {}, "row[3]")
    with pytest.raises(ValueError, match="^key 'row': want a table, got an integer$"):
        structure(converter, Tree, 1, "row")


def test_a_misspelt_key_is_reported_before_the_missing_key() -> None:
    converter = strict_converter(unknown_keys=False)
    with pytest.raises(ValueError, match="^unknown key 'nam'; known here: "):
        structure(converter, Tree, {"nam": "n"})


def test_unknown_keys_can_be_ignored() -> None:
    converter = strict_converter(unknown_keys=True)
    assert structure(converter, Tree, {"name": "n", "new": 1, "leaf": {"new": 1}}) == Tree("n")


def test_a_bug_is_not_taken_for_a_wrong_value() -> None:
    with pytest.raises(KeyError, match="a bug"):
        structure(strict_converter(unknown_keys=False), Leaf, {"small": -1})
