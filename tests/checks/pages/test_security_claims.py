"""Each row of docs/security.md and docs/limits.md names existing tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_NAME = re.compile(r"`(test_\w+)`")


def defined(folder: Path) -> set[str]:
    """Names of the tests below the folder."""
    return {
        node.name
        for path in folder.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def wrong_names(page: str, known: set[str]) -> list[str]:
    """Names of the page that are no tests."""
    return sorted(set(_NAME.findall(page)) - known)


def claims(page: str) -> Iterator[str]:
    """Rows of all tables with tests in their last column."""
    inside = False
    for line in page.splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.replace(" ", "").endswith("|tests|"):
            inside = True
        elif inside and not line.startswith("|---"):
            yield line


def unproven(page: str) -> list[str]:
    """Claims without a test in their last column."""
    return [row for row in claims(page) if not _NAME.search(row.strip().strip("|").rpartition("|")[2])]


@pytest.mark.parametrize(("path", "least"), [("docs/security.md", 100), ("docs/limits.md", 7)])
def test_each_name_is_of_a_test(path: str, least: int) -> None:
    page = (ROOT / path).read_text()
    assert len(set(_NAME.findall(page))) > least
    assert wrong_names(page, defined(ROOT / "tests")) == []


@pytest.mark.parametrize(("path", "least"), [("docs/security.md", 40), ("docs/limits.md", 10)])
def test_each_claim_has_a_test(path: str, least: int) -> None:
    page = (ROOT / path).read_text()
    assert len(list(claims(page))) > least
    assert unproven(page) == []


def test_a_misspelt_name_is_found() -> None:
    known = {"test_there_is"}
    assert wrong_names("`test_there_is`", known) == []
    assert wrong_names("held by `test_there_iz`, `test_there_is`", known) == ["test_there_iz"]


@pytest.mark.parametrize("last", ["", "a file", "`tests/hostile`"])
def test_a_claim_without_a_test_is_found(last: str) -> None:
    table = f"| claim | what holds it | tests |\n|---|---|---|\n| a | b, `test_x` | {last} |\n"
    assert len(unproven(table)) == 1
    assert unproven(table.replace(f"| {last} |", "| `test_x` |")) == []


def test_readers_find_a_link_to_the_page() -> None:
    for page in ("README.md", "docs/architecture.md", "docs/operations/README.md"):
        assert "security.md" in (ROOT / page).read_text(), page
