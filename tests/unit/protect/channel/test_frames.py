"""The codec: golden frames, round trips, any chunking, garbage."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protect.channel import frames
from protect.channel.frames import Frame, FrameDecoder, Side, Type, encode
from protect.model.errors import ProtocolViolation
from tests.support.agent import golden_frames
from tests.support.agent.decoding import feed, kept_bytes

GOLDEN = json.loads(golden_frames.PATH.read_text())
LARGEST = frames.HEADER.size + (1 << 20)

hellos = st.builds(Frame, st.just(Type.HELLO), st.just(0), st.binary(max_size=4096))
calls = st.builds(Frame, st.just(Type.CALL), st.integers(1, frames.MAX_STREAM), st.binary(max_size=9000))
datas = st.builds(
    frames.data,
    st.integers(1, frames.MAX_STREAM),
    st.integers(0, (1 << 64) - 100_000),
    st.binary(min_size=1, max_size=9000),
    st.booleans(),
)
fins = st.builds(
    frames.data, st.integers(1, frames.MAX_STREAM), st.integers(0, (1 << 64) - 1), st.just(b""), st.just(True)
)
credits = st.builds(
    lambda stream, consumed, window, fin: frames.credit(stream, consumed, consumed + window, fin),
    st.integers(1, frames.MAX_STREAM),
    st.integers(0, 1 << 63),
    st.integers(0, frames.WINDOW),
    st.booleans(),
)
legal = st.one_of(hellos, calls, datas, fins, credits)


def _chunks(raw: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    return [raw[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def test_the_golden_file_equals_the_generators_output() -> None:
    assert golden_frames.PATH.read_text() == golden_frames.text()


def test_golden_names_are_unique() -> None:
    names = [entry["name"] for entry in GOLDEN]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", GOLDEN, ids=lambda entry: entry["name"])
def test_golden_frames_are_decoded_or_refused(entry: dict[str, Any]) -> None:
    raw = bytes.fromhex(entry["hex"])
    decoder = FrameDecoder(Side(entry["direction"]))
    if entry["error"] is not None:
        with pytest.raises(ProtocolViolation) as caught:
            feed(decoder, raw)
        assert caught.value.cause
        return
    (frame,) = feed(decoder, raw)
    assert (frame.type, frame.stream, frame.fin) == (entry["type"], entry["stream"], bool(entry["flags"]))
    assert frame.payload.hex() == entry["payload_hex"]
    assert encode(frame) == raw


@given(st.lists(legal, max_size=12), st.lists(st.integers(0, 40_000), max_size=30))
def test_any_chunking_gives_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    decoder = FrameDecoder(Side.HOST)
    got: list[Frame] = []
    for chunk in _chunks(b"".join(map(encode, sent)), cuts):
        got += feed(decoder, chunk)
        assert kept_bytes(decoder) < LARGEST
    assert got == sent
    assert kept_bytes(decoder) == 0


@given(legal)
def test_frame_arriving_byte_by_byte_is_decoded_whole(sent: Frame) -> None:
    decoder = FrameDecoder(Side.HOST)
    raw = encode(sent)[:400] if len(encode(sent)) > 400 else encode(sent)
    got: list[Frame] = []
    for byte in raw:
        got += feed(decoder, bytes([byte]))
    got += feed(decoder, encode(sent)[len(raw) :])
    assert got == [sent]


@given(st.sampled_from(Side), st.lists(st.binary(max_size=300), max_size=30))
def test_garbage_is_a_violation_or_waits_and_never_grows(sender: Side, chunks: list[bytes]) -> None:
    decoder = FrameDecoder(sender)
    broken = False
    for chunk in chunks:
        try:
            feed(decoder, chunk)
            assert not broken, "a violation must be final"
        except ProtocolViolation:
            broken = True
        assert kept_bytes(decoder) < LARGEST
        assert not (broken and kept_bytes(decoder))


@given(
    st.sampled_from(Side),
    st.integers(0, 8),
    st.integers(0, 3),
    st.integers(0, 1),
    st.integers(0, 2),
    st.sampled_from(
        [0, 1, 7, 8, 9, 15, 16, 17, 4096, 4097, 65544, 65545, 1 << 20, (1 << 20) + 1, 0xFFFFFFFF]
    ),
)
def test_a_bad_header_is_refused_before_its_payload(
    sender: Side, kind: int, flags: int, zero: int, stream: int, length: int
) -> None:
    table = {
        1: ({Side.HOST, Side.AGENT}, False, 0, 4096, 0),
        2: ({Side.HOST}, True, 0, 1 << 20, 0),
        3: ({Side.AGENT}, True, 0, 1 << 20, 0),
        4: ({Side.AGENT}, False, 0, 4096, 0),
        5: ({Side.HOST, Side.AGENT}, True, 8 if flags & 1 else 9, 65544, 1),
        6: ({Side.HOST, Side.AGENT}, True, 16, 16, 1),
    }
    row = table.get(kind)
    allowed = row is not None and (
        sender in row[0]
        and zero == 0
        and bool(stream) is row[1]
        and row[2] <= length <= row[3]
        and flags & ~row[4] == 0
    )
    decoder = FrameDecoder(sender)
    header = struct.pack("<BBHII", kind, flags, zero, stream, length)
    if allowed:
        feed(decoder, header)
    else:
        with pytest.raises(ProtocolViolation):
            feed(decoder, header)


def test_the_longest_frames_pass() -> None:
    raw = encode(frames.data(1, 0, b"x" * frames.WINDOW)) + encode(Frame(Type.CALL, 1, b"y" * (1 << 20)))
    decoder = FrameDecoder(Side.HOST)
    got = [frame for at in range(0, len(raw), 10_000) for frame in feed(decoder, raw[at : at + 10_000])]
    assert [len(frame.payload) for frame in got] == [8 + frames.WINDOW, 1 << 20]


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Type.HELLO, 1, b""),
        Frame(Type.CALL, 0, b""),
        Frame(Type.CALL, 1, b"x" * ((1 << 20) + 1)),
        Frame(Type.EVENT, 0, b"", fin=True),
        Frame(Type.CREDIT, 1, b"short"),
        frames.credit(1, 2, 1),
        frames.data(1, 0, b""),
    ],
)
def test_nothing_illegal_is_encoded(frame: Frame) -> None:
    with pytest.raises(ValueError):
        encode(frame)
