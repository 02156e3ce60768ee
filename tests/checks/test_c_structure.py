"""The C of a zone has an order: no cycle among its files, and no room needs a higher room.

A module is a .c file with its .h.  A module needs another module if it includes the module's header, or uses
a function that the module defines and does not declare static.
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checks.packages import ROOT

ZONE, HOSTC = ROOT / "zone", ROOT / "hostc"
ROOMS = ("sys", "boot", "channel", "mounts", "container", "verbs", "main.c")
"""The agent's rooms, from low to high; each room may use the rooms before."""
MODULES_IN_A_ROOM = 15

_NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_DIRECTIVE = re.compile(r"^#(?:\\\n|[^\n])*", re.MULTILINE)
_FUNCTION = re.compile(r"(\w+)\s*\([^{};]*\)\s*$")
_USE = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")


def code_of(text: str) -> str:
    """The code without comments, strings and directives, but with the bodies of macros."""
    plain = _NOT_CODE.sub(" ", text)
    return _DIRECTIVE.sub(lambda line: line[0] if line[0].startswith("#define") else " ", plain)


def functions_of(code: str) -> Iterator[tuple[str, bool]]:
    """Each defined function, and True if the function is static."""
    depth, start = 0, 0
    for at in re.finditer(r"[{};]", _DIRECTIVE.sub(" ", code)):
        head = _DIRECTIVE.sub(" ", code)[start : at.start()]
        if at[0] == "{":
            found = _FUNCTION.search(head) if depth == 0 else None
            if found:
                yield found[1], bool(re.search(r"\bstatic\b", head))
            depth += 1
        elif at[0] == "}":
            depth -= 1
        if depth == 0 or at[0] == "{":
            start = at.end()


def module_of(path: Path) -> str:
    return path.with_suffix("").as_posix()


class Tree:
    """The modules below a folder, and their needs."""

    def __init__(self, root: Path) -> None:
        self.files = {
            path.relative_to(root): path.read_text()
            for path in sorted(root.rglob("*"))
            if path.suffix in (".c", ".h")
        }
        self.modules = sorted({module_of(path) for path in self.files})
        self.definitions: dict[str, str] = {}
        self.private: dict[str, set[str]] = {module: set() for module in self.modules}
        for path, text in self.files.items():
            for name, static in functions_of(code_of(text)):
                if static:
                    self.private[module_of(path)].add(name)
                else:
                    self.definitions[name] = module_of(path)
        self.needs: dict[str, set[str]] = {module: set() for module in self.modules}
        for path, text in self.files.items():
            self.needs[module_of(path)] |= {*self.included(path, text), *self.used(path, text)}
            self.needs[module_of(path)].discard(module_of(path))

    def included(self, path: Path, text: str) -> Iterator[str]:
        for name in _INCLUDE.findall(text):
            for place in (path.parent / name, Path(name)):
                if place in self.files:
                    yield module_of(place)
                    break

    def used(self, path: Path, text: str) -> Iterator[str]:
        """Headers only declare."""
        if path.suffix == ".c":
            names = {*_USE.findall(code_of(text))} - self.private[module_of(path)]
            yield from (self.definitions[name] for name in names if name in self.definitions)

    def cycle(self) -> list[str]:
        """The modules of one file, or nothing."""
        try:
            graphlib.TopologicalSorter(self.needs).prepare()
        except graphlib.CycleError as error:
            return list(error.args[1])
        return []

    def upward(self, rooms: tuple[str, ...]) -> list[str]:
        """Modules that need a higher room, and modules without a room."""
        rank = {room: number for number, room in enumerate(rooms)}

        def room_of(module: str) -> str:
            return module.split("/")[0] if "/" in module else f"{module}.c"

        return [f"{module}: in no room" for module in self.modules if room_of(module) not in rank] + [
            f"{module} needs {other}"
            for module in self.modules
            for other in sorted(self.needs[module])
            if rank.get(room_of(module), 0) < rank.get(room_of(other), 0)
        ]


@pytest.fixture(scope="module")
def agent() -> Tree:
    return Tree(ZONE / "agent")


def test_the_agent_is_read(agent: Tree) -> None:
    """The rules below have objects to check: calls, and functions as arguments."""
    assert len(agent.modules) > 40
    assert agent.definitions["log_line"] == "sys/log" and agent.definitions["call_begin"] == "channel/call"
    assert {"channel/link", "channel/call", "verbs/create", "sys/reaper"} <= agent.needs["main"]
    assert "container/job" in agent.needs["verbs/create"]


def test_the_agent_has_no_cycle(agent: Tree) -> None:
    assert agent.cycle() == []


def test_no_room_of_the_agent_needs_a_higher_room(agent: Tree) -> None:
    assert agent.upward(ROOMS) == []


def test_rooms_of_the_agent_are_small(agent: Tree) -> None:
    count = {room: sum(module.startswith(f"{room}/") for module in agent.modules) for room in ROOMS[:-1]}
    assert all(0 < modules <= MODULES_IN_A_ROOM for modules in count.values()), count


def test_the_order_is_written_down() -> None:
    assert " < ".join(f"`{room}`" for room in ROOMS) in (ZONE / "README.md").read_text()


def test_the_programs_of_the_host_have_no_cycle() -> None:
    tree = Tree(HOSTC)
    assert "fakedom/init" in tree.needs["fakedom/monitor"]
    assert tree.cycle() == []


MADE_UP = {
    "low/log.h": "void log_line(void);\n",
    "low/log.c": '#include "low/log.h"\nvoid log_line(void)\n{\n}\n',
    "high/verb.h": "int go(int n);\n",
    "high/verb.c": (
        '#include "high/verb.h"\n#include "low/log.h"\nint go(int n)\n{\n\tlog_line();\n\treturn n;\n}\n'
    ),
    "main.c": "int main(void)\n{\n\treturn 0;\n}\n",
}


def made_up(folder: Path, **changed: str) -> Tree:
    """The tree above with more text at the end of some files: ``low_log_c`` is low/log.c."""
    for name, text in MADE_UP.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + changed.get(re.sub(r"\W", "_", name), ""))
    return Tree(folder)


MADE_UP_ROOMS = ("low", "high", "main.c")


def test_a_tree_in_order_is_fine(tmp_path: Path) -> None:
    """No file uses private functions, members, comments or texts of another file."""
    more = '/* go(1) */\nstatic int go(struct s *s)\n{\n\tputs("go(1)");\n\treturn s->go + s[0].go;\n}\n'
    tree = made_up(tmp_path, low_log_c=more)
    assert tree.needs == {"low/log": set(), "high/verb": {"low/log"}, "main": set()}
    assert tree.cycle() == [] and tree.upward(MADE_UP_ROOMS) == []


@pytest.mark.parametrize(
    "more",
    [
        "int again(void)\n{\n\treturn go(2);\n}\n",
        "int (*later)(int) = go;\n",
        "#define LATER go(1)\n",
        '#include "high/verb.h"\n',
    ],
)
def test_a_need_of_a_room_above_is_found(tmp_path: Path, more: str) -> None:
    """A call, a function passed on, one in a macro, an include: each is upward, and closes a cycle."""
    tree = made_up(tmp_path, low_log_c=more)
    assert tree.upward(MADE_UP_ROOMS) == ["low/log needs high/verb"]
    assert sorted(set(tree.cycle())) == ["high/verb", "low/log"]


def test_an_include_of_a_header_closes_a_cycle(tmp_path: Path) -> None:
    tree = made_up(tmp_path, low_log_h='#include "../high/verb.h"\n#include "high/verb.h"\n')
    assert tree.upward(MADE_UP_ROOMS) == ["low/log needs high/verb"] and tree.cycle()


def test_a_file_in_no_room_is_found(tmp_path: Path) -> None:
    assert made_up(tmp_path).upward(("low", "main.c")) == ["high/verb: in no room"]
