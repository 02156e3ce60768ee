"""Small layers that take much of the host's time or memory to read."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from images.bounds.cancel import CancelToken
from images.bounds.limits import ImageLimits
from images.image_errors import Cancelled
from images.layer import compression, tarstream
from images.layer.layers import read_layer
from images.layer.stream import PlainStream
from images.rootfs.plan import Planner
from images.rootfs.tree import MergedTree
from tests.hostile.images.lone_reader import Reading, Task, read_alone
from tests.support.images.images import Layer, digest, packed

MIB = 1 << 20
END = bytes(1024)


def _header(kind: bytes, size: int = 0, name: str = "x", link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info.tobuf(tarfile.USTAR_FORMAT)


def _pax(text: bytes) -> bytes:
    return _header(b"x", len(text)) + text + bytes(-len(text) % 512)


def _record(key: bytes, value: bytes) -> bytes:
    rest = len(key) + len(value) + 3
    return b"%d %s=%s\n" % (rest + len(str(rest + len(str(rest)))), key, value)


def _headers(count: int, key: bytes, value: bytes = b"1") -> bytes:
    """Make headers of nearly a MiB with the shortest records; %x: a number."""
    found, number = [], 0
    for _ in range(count):
        records, size = [], 0
        while size < MIB - 100:
            records.append(_record(key.replace(b"%x", b"%x" % number), value))
            size += len(records[-1])
            number += 1
        found.append(_pax(b"".join(records)))
    return b"".join(found)


def _old_map(blocks: int) -> bytes:
    """A sparse file whose map goes on block by block, with no part in any block."""
    first = bytearray(_header(b"S"))
    first[482:495] = b"\1%011o\0" % 0
    first[148:156] = b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    return bytes(first) + (bytes(504) + b"\1" + bytes(7)) * blocks


def _read(tmp_path: Path, data: bytes, tar: bytes, plan: bool = False, **limits: int) -> Reading:
    path = tmp_path / "layer"
    path.write_bytes(data)
    return read_alone(Task(str(path), digest(tar), plan=plan, limits=limits))


def _sparse(stored: bytes) -> bytes:
    head = _record(b"GNU.sparse.major", b"1") + _record(b"GNU.sparse.realsize", b"9")
    return _pax(head) + _header(b"0", len(stored)) + stored


@pytest.mark.parametrize(
    "stored",
    [b"60000\n" + b"0" * 16 * MIB, b"1" * 16 * MIB, b"60000\n" + (b"1" * (1 << 17) + b"\n") * 128],
    ids=["one number", "the count", "long numbers"],
)
def test_a_sparse_map_is_read_once(tmp_path: Path, stored: bytes) -> None:
    tar = _sparse(stored + bytes(-len(stored) % 512)) + END
    reading = _read(tmp_path, gzip.compress(tar), tar)
    assert (reading.fault, "sparse map" in reading.text) == ("Unpackable", True)
    assert reading.took < 4 * MIB


def test_a_sparse_map_without_parts_does_not_go_on(tmp_path: Path) -> None:
    tar = _old_map(64 * MIB // 512) + END
    reading = _read(tmp_path, gzip.compress(tar), tar)
    assert reading.fault == "Unpackable"
    assert "parts" in reading.text
    assert reading.took < 4 * MIB


@pytest.mark.parametrize("key", [b"SCHILY.xattr.%x", b"SCHILY.xattr.user.%x"])
def test_attributes_are_weighed_while_they_are_read(tmp_path: Path, key: bytes) -> None:
    tar = _headers(48, key) + _header(b"0") + END
    reading = _read(tmp_path, gzip.compress(tar, 1), tar, memory_bytes=32 * MIB)
    assert (reading.fault, "images.limits.memory_bytes" in reading.text) == ("Oversized", True)
    assert reading.peak < 80 * MIB
    assert reading.took < 24 * MIB


@pytest.mark.parametrize("key", [b"comment%x", b"%x", b"LIBARCHIVE.xattr.%x"])
def test_records_without_meaning_are_dropped(tmp_path: Path, key: bytes) -> None:
    tar = _headers(12, key) + _header(b"0") + END
    reading = _read(tmp_path, gzip.compress(tar, 1), tar, memory_bytes=4 * MIB)
    assert (reading.fault, reading.entries) == ("", 1)
    assert reading.peak < 48 * MIB


def test_numbers_of_a_sparse_map_are_counted_while_they_are_read(tmp_path: Path) -> None:
    tar = _headers(32, b"GNU.sparse.offset") + _header(b"0") + END
    reading = _read(tmp_path, gzip.compress(tar, 1), tar)
    assert (reading.fault, "parts" in reading.text) == ("Unpackable", True)
    assert reading.took < 8 * MIB
    assert reading.peak < 80 * MIB


@pytest.mark.parametrize("kind", [b"x", b"L", b"K", b"g"])
def test_headers_without_an_entry_are_weighed(tmp_path: Path, kind: bytes) -> None:
    tar = _header(kind) * (32 * MIB // 512) + _header(b"0") + END
    reading = _read(tmp_path, gzip.compress(tar), tar, memory_bytes=MIB)
    assert (reading.fault, "images.limits.memory_bytes" in reading.text) == ("Oversized", True)
    assert reading.took < 8 * MIB


def test_empty_members_take_no_time_each(tmp_path: Path) -> None:
    member = gzip.compress(b"", mtime=0)
    reading = _read(tmp_path, member * (16 * MIB // len(member)), b"")
    assert (reading.fault, reading.took) == ("", 0)


def test_header_in_single_bytes_is_not_copied_each_time(tmp_path: Path) -> None:
    text = _record(b"comment", b"a" * (MIB - 20))
    start = text.index(b"aaa")
    before = _header(b"x", len(text)) + text[:start]
    after = text[start + MIB - 20 :] + bytes(-len(text) % 512) + _header(b"0") + END
    member = gzip.compress(b"a", mtime=0)
    data = gzip.compress(before) + member * (MIB - 20) + gzip.compress(after)
    reading = _read(tmp_path, data, before + b"a" * (MIB - 20) + after)
    assert (reading.fault, reading.entries) == ("", 1)


GZIP = b"\x1f\x8b\x08"
FRAME = b"\x28\xb5\x2f\xfd\x00"
# Streams with little time for their size in any implementation, also in a later release.
STREAMS = {
    "gzip name without end": GZIP + b"\x08" + bytes(5) + b"\xff" + b"a" * 32 * MIB,
    "gzip comment without end": GZIP + b"\x10" + bytes(5) + b"\xff" + b"a" * 32 * MIB,
    "gzip names": (GZIP + b"\x08" + bytes(5) + b"\xff" + b"a" * 90 + b"\0\x03" + bytes(9)) * (8 * MIB // 112),
    "gzip empty blocks": GZIP + bytes(6) + b"\xff" + b"\0\0\0\xff\xff" * (32 * MIB // 5),
    "zstd empty frames": zstandard.compress(b"") * (8 * MIB // 9),
    "zstd skippable frames": (b"\x50\x2a\x4d\x18" + bytes(4)) * (8 * MIB // 8),
    "zstd empty blocks": FRAME + b"\x88" + bytes(32 * MIB),
    "zstd largest windows": (FRAME + b"\x88\x09\0\0x") * (2 * MIB // 10),
    "zstd windows of two sizes": (FRAME + b"\x88\x09\0\0x" + (FRAME + b"\0\x09\0\0x") * 130) * 1500,
    "zstd blocks of a byte": FRAME + b"\x88" + b"\x08\0\0x" * (8 * MIB // 4),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_made_to_be_slow(tmp_path: Path, name: str) -> None:
    reading = _read(tmp_path, STREAMS[name], b"")
    assert reading.fault in ("", "Corrupt", "Unpackable")
    assert reading.peak < 160 * MIB


@pytest.mark.parametrize("name", [name for name in STREAMS if name.startswith("zstd")])
def test_bytes_of_compressed_streams_come_in_few_pieces(name: str) -> None:
    """Whatever is done for each piece is not done for each byte."""
    pieces = [len(piece) for piece in compression.plain([STREAMS[name]], "layer")]
    assert len(pieces) <= sum(pieces) // (64 << 10) + 1


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_cancel_is_heard_between_plain_chunks(how: str) -> None:
    """The compressed layer is a single chunk, and becomes 256 MiB."""
    token = CancelToken()
    blob = packed(Layer().file("zeros", bytes(256 * MIB)).tar(), how)

    def chunks() -> Iterator[bytes]:
        yield blob.data[:-8]
        pytest.fail("all of it was inflated")

    def called_off(_: object, stream: PlainStream) -> None:
        token.cancel()

    with pytest.raises(Cancelled):
        read_layer(chunks(), len(blob.data), blob.diff_id, ImageLimits(), called_off, token)


def test_cancel_is_heard_while_entries_are_applied() -> None:
    token = CancelToken()
    planner = Planner("image", ImageLimits())

    def entries() -> Iterator[tarstream.TarEntry]:
        for number in range(1000):
            if number == 500:
                token.cancel()
            data = _header(b"0", name=f"f{number}") + END
            yield from tarstream.entries(PlainStream(iter([data]), "layer"), 512, lambda _: None)
            assert number < 502

    with pytest.raises(Cancelled):
        planner.apply(token.passing(entries()))
    with pytest.raises(Cancelled):
        planner.plan(token)


def test_a_file_of_many_names_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its main name may be 2,000 directories deep."""
    deep = "d/" * 1900 + "f"
    layer = Layer().file(deep).link("a", deep)
    for number in range(2000):
        layer.link(f"n{number}", "a")
    asked, main_name = [], MergedTree.main_name

    def counted(tree: MergedTree, node: object) -> bytes | None:
        asked.append(node)
        return main_name(tree, node)  # type: ignore[arg-type]

    monkeypatch.setattr(MergedTree, "main_name", counted)
    planner = Planner("image", ImageLimits())
    stream = PlainStream(iter([layer.tar()]), "layer")
    planner.apply(tarstream.entries(stream, MIB, lambda _: None))
    assert (len(planner.plan().links), len(asked)) == (2001, 1)


@pytest.mark.parametrize("shape", ["whiteouts", "opaque", "deep", "links in a chain"])
def test_trees_made_to_be_slow(tmp_path: Path, shape: str) -> None:
    layer = Layer(tarfile.GNU_FORMAT)
    match shape:
        case "whiteouts":
            for number in range(40_000):
                layer.file(f"d/.wh.{number}")
        case "opaque":
            for number in range(2000):
                layer.file(f"d/{number}")
            for _ in range(5000):
                layer.file("d/.wh..wh..opq")
        case "deep":
            for number in range(5000):
                layer.file("d/" * 1900 + f"{number}/f")
        case _:
            layer.file("0")
            for number in range(40_000):
                layer.link(f"{number + 1}", f"{number}")
    tar = layer.tar()
    reading = _read(tmp_path, gzip.compress(tar, 1), tar, plan=True, path_steps=5_000_000)
    assert reading.fault == ("Oversized" if shape in ("opaque", "deep") else "")
    assert reading.fault == "" or "path_steps" in reading.text
