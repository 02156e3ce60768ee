"""The C codec against the golden frames, and against the Python codec on any header."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protect.channel.frames import FrameDecoder, Side
from protect.model.errors import ProtocolViolation
from tests.support.agent.decoding import feed
from tests.support.agent.golden_frames import PATH

GOLDEN = json.loads(PATH.read_text())


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_the_agent_decodes_golden_frames(
    golden: dict[str, Any], frame_check: Callable[[str, bytes], str]
) -> None:
    said = frame_check(golden["direction"], bytes.fromhex(golden["hex"]))
    if golden["error"] is None:
        length = len(golden["payload_hex"]) // 2
        assert said == f"ok {golden['type']} {golden['flags']} {golden['stream']} {length}"
    else:
        assert said.startswith("error ")


headers = st.tuples(
    st.one_of(st.integers(0, 8), st.integers(0, 255)),
    st.one_of(st.integers(0, 2), st.integers(0, 255)),
    st.sampled_from([0, 0, 0, 1, 0x8000]),
    st.one_of(st.integers(0, 2), st.integers(0, 2**32 - 1)),
    st.one_of(st.integers(0, 40), st.sampled_from([4096, 4097, 65544, 65545, 1 << 20, (1 << 20) + 1])),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=200,
    deadline=None,
)
@given(
    header=headers, sender=st.sampled_from(Side), numbers=st.tuples(st.integers(0, 99), st.integers(0, 70000))
)
def test_both_codecs_agree(
    header: tuple[int, int, int, int, int],
    sender: Side,
    numbers: tuple[int, int],
    frame_check: Callable[[str, bytes], str],
) -> None:
    payload = struct.pack("<QQ", *numbers).ljust(header[4], b"x")[: header[4]]
    frame = struct.pack("<BBHII", *header) + payload
    said = frame_check(sender.value, frame)
    try:
        whole = len(feed(FrameDecoder(sender), frame)) == 1
    except ProtocolViolation:
        assert said.startswith("error ")
    else:
        assert whole and said.startswith("ok ")
