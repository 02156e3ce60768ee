"""Lists that are encoded line by line are the messages that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from cri.server.rendered import Rendered
from xenpod_proto.cri.v1 import runtime_pb2 as cri


@dataclass(frozen=True)
class Line:
    """A record of which only the name is shown."""

    id: str
    name: str
    phase: str = ""
    hidden: bool = False


def item(line: Line) -> cri.PodSandbox:
    return cri.PodSandbox(id=line.id, metadata=cri.PodSandboxMetadata(name=line.name))


def parsed(data: bytes) -> list[tuple[str, str]]:
    return [(one.id, one.metadata.name) for one in cri.ListPodSandboxResponse.FromString(data).items]


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=40_000)), max_size=5))
def test_any_lines(pairs: list[tuple[str, str]]) -> None:
    lines = [Line(key, name) for key, name in dict(pairs).items()]
    rendered: Rendered[Line] = Rendered(item)
    expected = cri.ListPodSandboxResponse(items=map(item, lines)).SerializeToString()
    assert rendered.response(lines, every=True) == expected == rendered.response(lines, every=False)


def test_a_line_is_made_again_when_its_record_changes() -> None:
    made: list[str] = []

    def counted(line: Line) -> cri.PodSandbox:
        made.append(line.name)
        return item(line)

    rendered: Rendered[Line] = Rendered(counted)
    first, second = Line("1", "a"), Line("2", "b")
    for _ in range(3):
        assert parsed(rendered.response([first, second], every=True)) == [("1", "a"), ("2", "b")]
    assert parsed(rendered.response([first], every=False)) == [("1", "a")]
    assert made == ["a", "b"]
    changed = Line("2", "c")
    assert parsed(rendered.response([first, changed], every=True)) == [("1", "a"), ("2", "c")]
    assert made == ["a", "b", "c"]
    assert rendered.response([], every=True) == b"" and rendered._lines == {}
