"""Named steps for tests to kill a daemon at.

In production ``checkpoint`` is one look-up in an empty dictionary.  With the configuration key ``kill_at``
(fault injection; e.g. ``kill_at = "run-pod.network-made"``, or ``"run-pod.network-made:3"`` for the third
passing) the daemon sends itself SIGKILL at the step, as in a power cut: no handler, no cleanup, no flush.

A call declares its step: the names are collected on demand from the source of all modules that import
``checkpoint``.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from daemonkit.faults import Invalid


@dataclass(frozen=True, slots=True)
class FaultInjection:
    """The configuration table ``[faults]``, for tests."""

    kill_at: str = ""


_NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
_armed: dict[str, int] = {}


def checkpoint(name: str) -> None:
    """Mark the step ``name`` (``verb.step``, a literal) as reached; kills the process if armed."""
    if name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def checkpoint_names() -> list[str]:
    """All steps of the modules imported until now, in the order of import and then of the source."""
    found: dict[str, None] = {}
    for name, module in list(sys.modules.items()):
        if (
            name != __name__
            and isinstance(module, ModuleType)
            and vars(module).get("checkpoint") is checkpoint
        ):
            found |= dict.fromkeys(_names_in(module))
    return list(found)


def arm(kill_at: str) -> None:
    """Kill this process at a step: ``name`` or ``name:n`` (its n-th passing, from 1); ``""`` disarms.

    Raises Invalid for an unknown step: a test must not pass because of a misspelt name.
    """
    _armed.clear()
    if not kill_at:
        return
    name, _, count = kill_at.partition(":")
    known = checkpoint_names()
    if name not in known:
        raise Invalid("arm checkpoint", name, "no such step", f"known: {', '.join(known) or 'none'}")
    if count and not (count.isascii() and count.isdigit() and int(count) > 0):
        raise Invalid("arm checkpoint", name, f"count {count!r} is not a positive number")
    _armed[name] = int(count or 1)


def _names_in(module: ModuleType) -> Iterator[str]:
    """The names in a source.  ValueError: a call's argument is not a literal name, and cannot be armed."""
    source = module.__file__
    if source is None:
        return
    for line, call, argument in sorted(_calls(ast.parse(Path(source).read_bytes(), source))):
        if not _NAME.fullmatch(argument):
            raise ValueError(f"{source}:{line}: {call}: want lower-case words joined by . or -, in quotes")
        yield argument


def _calls(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Each call of ``checkpoint``: line, text and argument, "" unless the argument is a literal."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="checkpoint"), args=[ast.Constant(value=str(name))]):
                yield node.lineno, ast.unparse(node), name
            case ast.Call(func=ast.Name(id="checkpoint")):
                yield node.lineno, ast.unparse(node), ""
