"""Lists encoded line by line equal their messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from cri.rpc.rendered import Rendered
from xenpod_proto.cri.v1 import runtime_pb2 as cri


@dataclass(frozen=True)
class Line:
    """A record with its name alone."""

    id: str
    name: str
    phase: str = ""
    hidden: bool = False


def item(line: Line) -> cri.PodSandbox:
    return cri.PodSandbox(id=line.id, metadata=cri.PodSandboxMetadata(name=line.name))


def parsed(data: bytes) -> list[tuple[str, str]]:
    return [(one.id, one.metadata.name) for one in cri.ListPodSandboxResponse.FromString(data).items]


@dataclass
class Lines:
    """The store of the lines."""

    lines: list[Line] = field(default_factory=list)
    version: int = 0

    def visible(self) -> list[Line]:
        return self.lines

    def become(self, *lines: Line) -> None:
        self.lines = list(lines)
        self.version += 1


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=40_000)), max_size=5))
def test_rendered_lines_equal_their_encoded_messages(pairs: list[tuple[str, str]]) -> None:
    lines = [Line(key, name) for key, name in dict(pairs).items()]
    rendered = Rendered(Lines(lines), item)
    expected = cri.ListPodSandboxResponse(items=map(item, lines)).SerializeToString()
    assert rendered.every() == expected == rendered.some(lines)
    for line in lines:
        assert rendered.one(line) == cri.ListPodSandboxResponse(items=[item(line)]).SerializeToString()


def test_a_line_is_made_again_when_its_record_changes() -> None:
    made: list[str] = []

    def counted(line: Line) -> cri.PodSandbox:
        made.append(line.name)
        return item(line)

    first, second, changed = Line("1", "a"), Line("2", "b"), Line("2", "c")
    source = Lines([first, second])
    rendered = Rendered(source, counted)
    for _ in range(3):
        assert parsed(rendered.every()) == [("1", "a"), ("2", "b")]
    assert parsed(rendered.some([first])) == [("1", "a")]
    assert made == ["a", "b"]
    source.become(first, changed)
    assert parsed(rendered.every()) == [("1", "a"), ("2", "c")]
    assert parsed(rendered.one(changed)) == [("2", "c")]
    assert made == ["a", "b", "c"]
    source.become()
    assert rendered.every() == b""


def test_removed_records_are_forgotten() -> None:
    source = Lines()
    rendered = Rendered(source, item)
    for number in range(1000):
        source.become(line := Line(str(number), "x"))
        assert parsed(rendered.one(line)) == [(str(number), "x")]
    assert len(rendered._fields) <= 100
