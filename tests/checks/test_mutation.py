"""The mutation tool: its changes, and the places of its probes."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.__main__ import draw, spread
from tests.mutation.mutants import mutants
from tests.mutation.probes import hit, hits, instrument
from tests.mutation.scratch import ROOT

SOURCE = b'''"""A module."""

from __future__ import annotations

import logging

LIMIT = 5

log = logging.getLogger(__name__)


def check(value: int | None, more: bool = False) -> str:
    """Its own text is no statement."""
    if value is None and not more:
        raise ValueError("none", LIMIT)
    log.info("looked at")
    for each in range(3):
        if each == value:
            continue
        elif each > LIMIT:
            more = each in (1, 2)
    print(f"{value + 1}")
    return str(value)
'''
PATH = Path("module.py")
DEF = "defcheck(value:int|None,more:bool="


def changes() -> dict[str, str]:
    """The mutants by their diff without spaces."""
    return {"".join(one.diff(SOURCE).split()): one.kind for one in mutants(PATH, SOURCE)}


def test_each_kind_of_change_is_made() -> None:
    made = changes()
    for before, after, kind in (
        ("LIMIT=5", "LIMIT=6", "constant"),
        (
            "defcheck(value:int|None,more:bool=False)->str:",
            "defcheck(value:int|None,more:bool=True)->str:",
            "constant",
        ),
        ("ifvalueisNoneandnotmore:", "if(valueisNoneornotmore):", "condition"),
        ("ifvalueisNoneandnotmore:", "if(valueisnotNone)andnotmore:", "comparison"),
        ("ifvalueisNoneandnotmore:", "ifnot(valueisNoneand(notmore)):", "condition"),
        ('raiseValueError("none",LIMIT)', "pass", "deleted"),
        ('raiseValueError("none",LIMIT)', "raise(ValueError(LIMIT,'none'))", "swapped"),
        ("continue", "pass", "deleted"),
        ("elifeach>LIMIT:", "elif(each>=LIMIT):", "comparison"),
        ('print(f"{value+1}")', "pass", "deleted"),
        ("returnstr(value)", "returnNone", "return"),
    ):
        assert made[f"-{before}+{after}"] == kind


def test_log_lines_docstrings_and_imports_are_not_mutated() -> None:
    made = changes()
    assert not any("log.info" in diff or "Itsown" in diff or "import" in diff for diff in made)


def test_every_change_of_the_product_is_python() -> None:
    for file in (ROOT / "daemonkit/config.py", ROOT / "daemonkit/faults.py"):
        source = file.read_bytes()
        for mutant in mutants(file, source):
            changed = mutant.apply(source)
            assert changed != source
            ast.parse(changed)


def test_a_seed_draws_the_same_again() -> None:
    paths = [Path("daemonkit")]
    first = draw(1, 20, paths)
    assert first == draw(1, 20, paths) != draw(2, 20, paths)
    assert max(Counter((one.path, one.line, one.kind) for one in first).values()) == 1


def test_probes_name_the_tests_of_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = dict(enumerate(mutants(PATH, SOURCE)))
    file = tmp_path / "probes"
    file.touch()
    monkeypatch.setenv("XENPOD_PROBES", str(file))
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "test_a.py::test_one[a b] (call)")
    space: dict[str, object] = {}
    exec(compile(instrument(SOURCE, every), "module.py", "exec"), space)
    assert not hits(file)  # an import runs nothing here: a constant counts for its users
    check = space["check"]
    assert callable(check)
    check(0)
    assert set(map(frozenset, hits(file).values())) == {frozenset({"test_a.py::test_one[a b]"})}
    reached = {every[number].line for number in hits(file)}
    lines = SOURCE.decode().splitlines()
    unreached = {lines[one.line - 1].strip() for one in every.values() if one.line not in reached}
    assert unreached == {'raise ValueError("none", LIMIT)', "more = each in (1, 2)"}


def test_a_probe_does_nothing_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XENPOD_PROBES", raising=False)
    hit(1)
    monkeypatch.setenv("XENPOD_PROBES", str(tmp_path / "none"))
    hit(1)
    assert list(tmp_path.iterdir()) == []


def test_tests_are_taken_of_every_file() -> None:
    every = [f"a.py::{number}" for number in range(5)] + ["b.py::0", "b.py::1", "c.py::0"]
    assert spread(every, 4) == ["a.py::0", "b.py::0", "c.py::0", "a.py::1"]
    assert sorted(spread(every, 100)) == every
