"""CRI log lines: the same cuts for any pieces, nothing lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protect.stdio.log import LONGEST_LINE_BYTES, render, render_rest, stamp

LINE = re.compile(rb"^(\S+) (stdout|stderr) ([FP]) (.*)$", re.DOTALL)

contents = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [
                b"\n",
                b"\n\n",
                b"x" * LONGEST_LINE_BYTES,
                b"y" * (LONGEST_LINE_BYTES + 1),
                b"z" * (2 * LONGEST_LINE_BYTES),
                b"\r\n",
            ]
        ),
    ),
    max_size=12,
).map(b"".join)


def parse(log: bytes) -> list[tuple[bytes, bytes]]:
    assert log == b"" or log.endswith(b"\n")
    found = []
    for line in log.split(b"\n")[:-1]:
        match = LINE.match(line)
        assert match, line[:80]
        found.append((match[3], match[4]))
    return found


def content_of(log: bytes) -> bytes:
    return b"".join(text + (b"\n" if tag == b"F" else b"") for tag, text in parse(log))


def feed(pieces: list[bytes]) -> tuple[bytes, bytes]:
    log, rest = b"", b""
    for piece in pieces:
        rest += piece
        lines, used = render(rest, "stdout", 0)
        log += lines
        rest = rest[used:]
        assert len(rest) <= LONGEST_LINE_BYTES
        assert b"\n" not in rest
    return log, rest


@given(contents, st.lists(st.integers(0, 70_000), max_size=8))
def test_the_cuts_do_not_depend_on_the_pieces(content: bytes, cuts: list[int]) -> None:
    edges = sorted({min(cut, len(content)) for cut in cuts} | {0, len(content)})
    pieces = [content[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert feed(pieces) == feed([content])


@given(contents)
def test_nothing_is_lost_and_no_line_is_too_long(content: bytes) -> None:
    log, rest = feed([content])
    assert content_of(log) + rest == content
    assert all(len(text) <= LONGEST_LINE_BYTES for _, text in parse(log))


@pytest.mark.parametrize(
    ("content", "tags"),
    [
        (b"a\n", b"F"),
        (b"\n", b"F"),
        (b"x" * LONGEST_LINE_BYTES + b"\n", b"F"),
        (b"x" * (LONGEST_LINE_BYTES + 1) + b"\n", b"PF"),
        (b"x" * (2 * LONGEST_LINE_BYTES) + b"\n", b"PF"),
        (b"x" * (2 * LONGEST_LINE_BYTES + 1) + b"\n", b"PPF"),
        (b"x" * LONGEST_LINE_BYTES, b""),
        (b"x" * (LONGEST_LINE_BYTES + 1), b"P"),
        (b"a\nb\n\nc", b"FFF"),
    ],
)
def test_tags_of_pieces_join_to_the_line(content: bytes, tags: bytes) -> None:
    log, _ = render(content, "stderr", 0)
    assert b"".join(tag for tag, _ in parse(log)) == tags


def test_lines_have_the_exact_text() -> None:
    log, used = render(b"hello\nwor", "stdout", 1_700_000_000_000_000_042)
    assert (log, used) == (b"2023-11-14T22:13:20.000000042Z stdout F hello\n", 6)
    assert render_rest(b"wor", "stderr", 1) == b"1970-01-01T00:00:00.000000001Z stderr P wor\n"
    assert len(stamp(0)) == len(stamp((1 << 63) - 1)) == 30
