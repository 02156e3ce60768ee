"""Small changes to Python source: kinds and places."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SILENT = ("log.", "logging.", "checkpoint(", "declare(", "warnings.")
"""First words of statements without an effect for a caller."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: ``text`` replaces the bytes from ``start`` to ``stop`` of the file."""

    path: Path
    """From the top of the tree."""
    line: int
    start: int
    stop: int
    text: str
    kind: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.stop :]

    def diff(self, source: bytes) -> str:
        before, after = (text.decode().splitlines() for text in (source, self.apply(source)))
        lines = difflib.unified_diff(before, after, n=0, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def mutants(path: Path, source: bytes) -> list[Mutant]:
    """Every mutant of a file, in the order of the source."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in _code(tree):
        for place, kind, text in _changes(node):
            start = starts[place.lineno - 1] + place.col_offset
            stop = starts[(place.end_lineno or 0) - 1] + (place.end_col_offset or 0)
            if text.encode() != source[start:stop]:
                found.append(Mutant(path, place.lineno, start, stop, text, kind))
    return sorted(found, key=lambda one: (one.start, one.stop, one.text))


def _code(tree: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    """Statements and expressions, without annotations, decorators, docstrings and literal strings' parts."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params") or (
            isinstance(tree, ast.JoinedStr | ast.ClassDef) and name not in ("body",)
        ):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or _leave_out(node):
                continue
            if isinstance(node, ast.stmt | ast.expr):
                yield node
            yield from _code(node)


def _leave_out(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr():
            return True
        case ast.Expr():
            return ast.unparse(node).startswith(SILENT)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
        case ast.ClassDef(bases=bases):
            return any(ast.unparse(base).startswith("Protocol") for base in bases)
    return False


Node = ast.stmt | ast.expr


def _changes(node: Node) -> Iterator[tuple[Node, str, str]]:
    """The replaced node, the kind of change, and the new text."""
    if isinstance(node, ast.If | ast.While):
        yield node.test, "condition", f"not ({ast.unparse(node.test)})"
    elif isinstance(node, ast.stmt):
        yield from ((node, kind, text) for kind, text in _of_statement(node))
    else:
        yield from ((node, kind, text) for kind, text in _of_expression(node))


def _of_statement(node: ast.stmt) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Return(value=ast.expr() as value):
            yield "return", "return None"
            yield from _swapped("return", value)
        case ast.Raise(exc=ast.expr() as value, cause=cause):
            yield "deleted", "pass"
            if cause is None:
                yield from _swapped("raise", value)
        case ast.Expr() | ast.Raise() | ast.Delete() | ast.AugAssign() | ast.Break() | ast.Continue():
            yield "deleted", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "deleted", "pass"


def _of_expression(node: ast.expr) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield "comparison", _with(node, ops=[COMPARISONS[type(op)]()])
        case ast.BinOp(op=op) if type(op) in OPERATORS and not _is_type(node):
            yield "operator", _with(node, op=OPERATORS[type(op)]())
        case ast.BoolOp(op=op, values=values):
            yield "condition", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            yield "condition", f"({ast.unparse(values[0])})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "condition", f"({ast.unparse(operand)})"
        case ast.IfExp(test=test):
            yield "condition", _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool() as value):
            yield "constant", str(not value)
        case ast.Constant(value=int() as value):
            yield "constant", str(value + 1)


def _swapped(statement: str, value: ast.expr) -> Iterator[tuple[str, str]]:
    """The first two arguments of a call in a return or raise statement."""
    match value:
        case ast.Call(args=[first, second, *rest]) if ast.dump(first) != ast.dump(second):
            if not any(isinstance(one, ast.Starred) for one in (first, second)):
                yield "swapped", f"{statement} {_with(value, args=[second, first, *rest])}"


def _with(node: ast.expr, **changed: object) -> str:
    other = copy.copy(node)
    for name, value in changed.items():
        setattr(other, name, value)
    return f"({ast.unparse(ast.fix_missing_locations(other))})"


def _is_type(node: ast.BinOp) -> bool:
    """``int | None`` as a value."""
    return isinstance(node.op, ast.BitOr) and any(
        isinstance(side, ast.Constant) and side.value is None for side in (node.left, node.right)
    )
