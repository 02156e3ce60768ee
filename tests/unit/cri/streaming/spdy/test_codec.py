"""The SPDY codec: decoded frames equal encoded frames for any chunks; garbage gives an error only."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cri.streaming.spdy.decode import MAX_CONTROL, SpdyDecoder
from cri.streaming.spdy.encode import SpdyEncoder
from cri.streaming.spdy.frames import (
    MAX_DATA_BYTES,
    Data,
    Frame,
    GoAway,
    Ignored,
    MoreHeaders,
    Ping,
    Reset,
    SpdyError,
    SynReply,
    SynStream,
)
from cri.streaming.spdy.headers import MAX_BLOCK_BYTES, MAX_HEADERS, Compressor, Decompressor, dictionary

# Bytes of client-go's SPDY executor for `exec -i` with the input "hello world\n" (sub-protocol v4).
CLIENT_GO = bytes.fromhex(
    "800300010000002a0000000100000000000078f9e3c6a7c26260606004a7"
    "b392a2d4c45c6851c29a5a54945f04000000ffff80030001000000170000"
    "0003000000000000c22e555c92929907000000ffff800300010000001900"
    "000005000000000000c22ac5565c92925f5a02000000ffff800300010000"
    "001500000007000000000000c229975a5404000000ffff00000003000000"
    "0c68656c6c6f20776f726c640a0000000301000000800300030000000800"
    "000005000000058003000300000008000000070000000580030003000000"
    "08000000010000000580030007000000080000000000000000"
)
CLIENT_GO_FRAMES = [
    SynStream(1, {"streamtype": ("error",)}),
    SynStream(3, {"streamtype": ("stdin",)}),
    SynStream(5, {"streamtype": ("stdout",)}),
    SynStream(7, {"streamtype": ("stderr",)}),
    Data(3, b"hello world\n"),
    Data(3, b"", fin=True),
    Reset(5, 5),
    Reset(7, 5),
    Reset(1, 5),
    GoAway(0),
]

streams = st.integers(1, (1 << 31) - 1)
names = st.text(st.characters(codec="latin-1", exclude_characters="\0"), min_size=1, max_size=20).filter(
    lambda name: name == name.lower() and name.lower().encode("latin-1", "replace").decode("latin-1") == name
)
values = st.text(st.characters(codec="latin-1", exclude_characters="\0"), max_size=40)
headers = st.dictionaries(names, st.lists(values, min_size=1, max_size=3).map(tuple), max_size=5)
frames = st.one_of(
    st.builds(
        SynStream,
        streams,
        headers,
        fin=st.booleans(),
        unidirectional=st.booleans(),
        associated=st.integers(0, 100),
        priority=st.integers(0, 7),
    ),
    st.builds(SynReply, streams, headers, st.booleans()),
    st.builds(MoreHeaders, streams, headers, st.booleans()),
    st.builds(Reset, streams, st.integers(0, 2**32 - 1)),
    st.builds(Ping, st.integers(0, 2**32 - 1)),
    st.builds(GoAway, st.integers(0, (1 << 31) - 1), st.integers(0, 2**32 - 1)),
    st.builds(Data, streams, st.binary(max_size=3000), st.booleans()),
    st.builds(Ignored, st.sampled_from((4, 9, 10, 77))),
)


def joined(decoded: list[Frame]) -> list[Frame]:
    """The frames with the parts of each data frame joined."""
    whole: list[Frame] = []
    for frame in decoded:
        last = whole[-1] if whole else None
        if (
            isinstance(frame, Data)
            and isinstance(last, Data)
            and last.stream == frame.stream
            and not last.fin
            and last.data
            and frame.data
        ):
            whole[-1] = Data(frame.stream, last.data + frame.data, frame.fin)
        else:
            whole.append(frame)
    return whole


def decoded(pieces: list[bytes]) -> list[Frame]:
    decoder = SpdyDecoder()
    return [frame for piece in pieces for frame in decoder.feed(piece)]


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


def control(kind: int, body: bytes, flags: int = 0, version: int = 3) -> bytes:
    return struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(body)) + body


@given(st.lists(frames, max_size=12), st.lists(st.integers(0, 500), max_size=40))
def test_encoded_frames_are_decoded_from_pieces_of_any_size(sent: list[Frame], sizes: list[int]) -> None:
    encoder = SpdyEncoder()
    wire = b"".join(encoder.encode(frame) for frame in sent)
    assert joined(decoded(cut(wire, sizes))) == joined(sent)


@given(st.lists(st.integers(1, 40), max_size=40))
def test_frames_of_client_go_are_decoded(sizes: list[int]) -> None:
    assert joined(decoded(cut(CLIENT_GO, sizes))) == CLIENT_GO_FRAMES


def test_the_dictionary_equals_the_protocols() -> None:
    # zlib's own check value of the dictionary in "SPDY Protocol - Draft 3", as clients send it (0xe3c6a7c2)
    assert zlib.adler32(dictionary()) == 0xE3C6A7C2


@settings(max_examples=500, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=8))
def test_garbage_is_an_error_or_frames(pieces: list[bytes]) -> None:
    decoder = SpdyDecoder()
    try:
        for piece in pieces:
            list(decoder.feed(piece))
            assert len(decoder._kept) <= MAX_CONTROL + 8
    except SpdyError:
        assert len(decoder._kept) == 0


@settings(max_examples=500, deadline=None)
@given(st.lists(frames, min_size=1, max_size=5), st.data())
def test_a_flipped_byte_is_an_error_or_other_frames(sent: list[Frame], data: st.DataObject) -> None:
    encoder = SpdyEncoder()
    wire = bytearray(b"".join(encoder.encode(frame) for frame in sent))
    at = data.draw(st.integers(0, len(wire) - 1))
    wire[at] ^= data.draw(st.integers(1, 255))
    decoder = SpdyDecoder()
    try:
        list(decoder.feed(bytes(wire)))
    except SpdyError:
        with pytest.raises(SpdyError):
            list(decoder.feed(b"\0"))


@given(st.binary(max_size=400))
def test_a_header_block_of_garbage_is_an_error(block: bytes) -> None:
    with pytest.raises(SpdyError):
        Decompressor().unpack(block)


@given(st.binary(max_size=400))
def test_a_header_block_of_compressed_garbage_is_an_error(plain: bytes) -> None:
    packer = zlib.compressobj(zdict=dictionary())
    block = packer.compress(plain) + packer.flush(zlib.Z_SYNC_FLUSH)
    try:
        found = Decompressor().unpack(block)
    except SpdyError:
        return
    assert len(found) <= MAX_HEADERS


def test_a_header_bomb_is_not_unpacked() -> None:
    packer = zlib.compressobj(9, zdict=dictionary())
    bomb = packer.compress(b"\0" * (64 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert len(bomb) > MAX_CONTROL, "goes by its compressed size already"
    with pytest.raises(SpdyError, match="control frame of"):
        list(SpdyDecoder().feed(control(1, struct.pack(">IIBB", 1, 0, 0, 0) + bomb)))
    packer = zlib.compressobj(9, zdict=dictionary())
    bomb = packer.compress(b"\0" * (2 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert len(bomb) < MAX_CONTROL
    with pytest.raises(SpdyError, match=f"more than {MAX_BLOCK_BYTES}"):
        list(SpdyDecoder().feed(control(1, struct.pack(">IIBB", 1, 0, 0, 0) + bomb)))


def test_a_control_frame_beyond_the_maximum_is_an_error() -> None:
    assert list(SpdyDecoder().feed(control(99, bytes(MAX_CONTROL)))) == [Ignored(99)]
    with pytest.raises(SpdyError, match="control frame of"):
        list(SpdyDecoder().feed(control(99, bytes(MAX_CONTROL + 1))))


def test_a_stream_of_header_blocks_keeps_its_history() -> None:
    packer, unpacker = Compressor(), Decompressor()
    asked = {"streamtype": ("data",), "port": ("8080",), "requestid": ("17",)}
    first, second = packer.pack(asked), packer.pack(asked)
    assert len(second) < len(first)
    assert [unpacker.unpack(first), unpacker.unpack(second)] == [asked, asked]


@pytest.mark.parametrize(
    "wire",
    [
        control(6, b"\0\0\0\1", version=2),
        control(6, b"\0\0\0"),
        control(3, b"\0\0\0\1"),
        control(3, b"\0\0\0\0\0\0\0\1"),
        control(7, b"\0" * 12),
        control(1, b"\0" * 9),
        control(2, b""),
        control(1, b"\0" * (MAX_CONTROL + 1)),
        struct.pack(">II", 0, 4) + b"data",
    ],
    ids=[
        "version 2", "short ping", "short reset", "reset of stream 0", "long goaway", "short syn_stream",
        "empty syn_reply", "long control frame", "data on stream 0",
    ],
)  # fmt: skip
def test_frames_against_a_rule_are_an_error(wire: bytes) -> None:
    decoder = SpdyDecoder()
    with pytest.raises(SpdyError):
        list(decoder.feed(wire))
    with pytest.raises(SpdyError):
        list(decoder.feed(control(6, b"\0\0\0\1")))


@pytest.mark.parametrize(
    "pairs",
    [
        [("Streamtype", "data")],
        [("", "data")],
        [("a", "1"), ("a", "2")],
        [(f"n{n}", "") for n in range(MAX_HEADERS + 1)],
    ],
    ids=["capitals", "no name", "twice", "too many"],
)
def test_headers_against_a_rule_are_an_error(pairs: list[tuple[str, str]]) -> None:
    plain = struct.pack(">I", len(pairs))
    for text in (text for pair in pairs for text in pair):
        plain += struct.pack(">I", len(text)) + text.encode()
    packer = zlib.compressobj(zdict=dictionary())
    with pytest.raises(SpdyError):
        Decompressor().unpack(packer.compress(plain) + packer.flush(zlib.Z_SYNC_FLUSH))


@pytest.mark.parametrize(
    ("plain", "flush", "words"),
    [
        (struct.pack(">I", 0), zlib.Z_FINISH, "ends its compression"),
        (struct.pack(">I", 0) + b"x", zlib.Z_SYNC_FLUSH, "bytes after the last header"),
    ],
)
def test_header_blocks_with_a_wrong_end_are_an_error(plain: bytes, flush: int, words: str) -> None:
    packer = zlib.compressobj(zdict=dictionary())
    with pytest.raises(SpdyError, match=words):
        Decompressor().unpack(packer.compress(plain) + packer.flush(flush))


def test_data_is_handed_on_before_its_frame_is_whole() -> None:
    decoder = SpdyDecoder()
    wire = SpdyEncoder().encode(Data(5, b"x" * 100_000, fin=True))
    assert list(decoder.feed(wire[:50_008])) == [Data(5, b"x" * 50_000)]
    assert len(decoder._kept) == 0
    assert list(decoder.feed(wire[50_008:])) == [Data(5, b"x" * 50_000, fin=True)]


def test_too_long_data_for_a_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="one frame"):
        SpdyEncoder().encode(Data(1, b"\0" * (MAX_DATA_BYTES + 1)))
