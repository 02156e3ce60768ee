"""Challenges of registries: all well-formed forms, and malformed text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.registry.conversation import challenge
from images.registry.conversation.challenge import MAX_CHALLENGE_BYTES, challenges


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (
            'Bearer realm="https://a/t",service="s",scope="repository:x:pull,push"',
            [("bearer", {"realm": "https://a/t", "service": "s", "scope": "repository:x:pull,push"})],
        ),
        ("Bearer realm=https://a/t,service=s", [("bearer", {"realm": "https://a/t", "service": "s"})]),
        ('BEARER REALM = "a" , Service="b"', [("bearer", {"realm": "a", "service": "b"})]),
        (r'Bearer realm="a\"b\\c"', [("bearer", {"realm": r"a\"b\c".replace(r"\"", '"')})]),
        (
            'Basic realm="x", Bearer realm="y",scope="z"',
            [("basic", {"realm": "x"}), ("bearer", {"realm": "y", "scope": "z"})],
        ),
        ('Bearer realm="a",realm="b"', [("bearer", {"realm": "a"})]),
        ("Negotiate", [("negotiate", {})]),
        ("", []),
        ("=x", []),
        ('realm="a"', []),
        ('Bearer realm="a", scope="unfinished', [("bearer", {"realm": "a"})]),
        ('Bearer realm="a" ; scope=b', [("bearer", {"realm": "a"})]),
        ("Bearer " + "a" * MAX_CHALLENGE_BYTES, []),
    ],
)
def test_a_header_is_read(header: str, found: list[tuple[str, dict[str, str]]]) -> None:
    assert [(one.scheme, dict(one.parameters)) for one in challenges(header)] == found


@given(st.text(alphabet='aB1=", \\\t;:/\0é', max_size=300) | st.text(max_size=300))
def test_any_header_gives_tokens_as_names(header: str) -> None:
    for one in challenges(header):
        for name in (one.scheme, *one.parameters):
            assert name and name.isascii() and name == name.lower() and not set(name) & set(' ",=\\')


@pytest.mark.parametrize(
    "piece", ["a", 'a="', "a=", '"\\', "a=b,", "\\", " ", ",", 'a="b"', "a b=", 'x="\\,']
)
def test_challenges_take_time_linear_in_their_length(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 times the length takes less than 64 * 8 times as long; squared, it would be 64 * 64."""
    monkeypatch.setattr(challenge, "MAX_CHALLENGE_BYTES", 1 << 30)

    def taken(length: int) -> float:
        text = "Bearer " + piece * (length // len(piece))
        begun = time.thread_time()
        challenges(text)
        return time.thread_time() - begun

    short = min(taken(1 << 13) for _ in range(9))
    assert min(taken(1 << 19) for _ in range(3)) < 64 * 8 * max(short, 20e-6)
