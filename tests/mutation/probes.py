"""Finds the tests that execute each mutant's place: each place in a copy of the tree reports execution."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutation.mutants import Mutant

FILE = "XENPOD_PROBES"
_seen: set[tuple[int, str]] = set()


def hit(number: int) -> None:
    """Run by the instrumented tree and its daemons: the daemons have the test's name in their environment."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if (number, test) in _seen or FILE not in os.environ:
        return
    _seen.add((number, test))
    # A process may see another file system, or have a limit on the size of files.
    with contextlib.suppress(OSError), open(os.environ[FILE], "r+b", buffering=0) as file:
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
        file.write(f"{number} {test}\n".encode())


def hits(file: Path) -> Mapping[int, set[str]]:
    """The tests that have run each mutant's place; ``""`` stands for all, as for places of an import."""
    found: dict[int, set[str]] = defaultdict(set)
    for line in file.read_text().splitlines():
        number, _, test = line.partition(" ")
        found[int(number)].add(test)
    return found


def instrument(source: bytes, mutants: Mapping[int, Mutant]) -> str:
    """The file with a probe before the statement of each mutant (by number)."""
    tree = ast.parse(source)
    for number, mutant in mutants.items():
        places = _statement(tree, mutant.line) or _users(tree, mutant.line)
        for body, index in sorted(places, key=lambda place: -place[1]):
            body.insert(index, _probe(number))
    return ast.unparse(ast.fix_missing_locations(tree))


def _probe(number: int) -> ast.stmt:
    return ast.parse(f"__import__('tests.mutation.probes', fromlist=['hit']).hit({number})").body[0]


Place = tuple[list[ast.stmt], int]


def _statement(tree: ast.Module, line: int) -> Sequence[Place]:
    """The innermost statement of a function at the line."""
    found: list[Place] = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                for body in _bodies(node):
                    found += [(body, at) for at, one in enumerate(body) if _at(one, line)]
    innermost = min(found, key=lambda place: _length(place[0][place[1]]), default=None)
    return [innermost] if innermost else []


def _users(tree: ast.Module, line: int) -> Sequence[Place]:
    """The places that use a statement of the import: functions with its name, else the import."""
    statement = next((one for one in tree.body if _at(one, line)), None)
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} if statement else set()
    if isinstance(statement, ast.ClassDef):
        names = set()
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and names & {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    ]
    after_future = sum(isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in tree.body)
    docstring = int(ast.get_docstring(tree, clean=False) is not None)
    return [(function.body, 0) for function in functions] or [(tree.body, docstring + after_future)]


def _bodies(node: ast.AST) -> list[list[ast.stmt]]:
    bodies = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    return [body for body in bodies if isinstance(body, list) and body and isinstance(body[0], ast.stmt)]


def _at(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno
