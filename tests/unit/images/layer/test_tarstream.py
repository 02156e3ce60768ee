"""The tar reader: all forms of usual tools, and all ways to break them."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import tarfile
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from daemonkit.faults import Fault
from images.bounds.limits import ImageLimits
from images.image_errors import Corrupt, Oversized, Unpackable
from images.layer import compression, tarstream
from images.layer.layers import read_layer
from images.layer.stream import PlainStream
from images.layer.tarsparse import MAX_EXTENTS
from images.layer.tarstream import TarEntry
from tests.support.images.images import Layer, digest, packed

SPARSE = ((0, 512), (1 << 20, 512))


def _read(data: bytes, chunk_bytes: int = 700, header_bytes: int = 1 << 20) -> list[TarEntry]:
    chunks = (data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes))
    return list(tarstream.entries(PlainStream(chunks, "layer"), header_bytes, lambda _: None))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("chunk_bytes", [1, 511, 512, 513, 1 << 20])
def test_entries_equal_tarfiles(form: int, chunk_bytes: int) -> None:
    layer = Layer(form)
    layer.dir("d").file("d/" + "n" * 180, b"x" * 1000, uid=70000, gid=3_000_000, mode=0o6751)
    layer.symlink("l", "t" * 150).link("h", "d/" + "n" * 180)
    layer.add("c", tarfile.CHRTYPE, devmajor=4, devminor=64).add("p", tarfile.FIFOTYPE)
    data = layer.file("näme\udcff", b"").tar()
    found = _read(data, chunk_bytes)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        expected = archive.getmembers()
        assert len(found) == len(expected)
        for entry, info in zip(found, expected, strict=True):
            assert entry.name.rstrip(b"/") == info.name.encode("utf-8", "surrogateescape")
            assert entry.link == info.linkname.encode()
            assert (entry.kind, entry.mode, entry.uid, entry.gid) == (
                info.type,
                info.mode,
                info.uid,
                info.gid,
            )
            assert (entry.mtime, entry.size) == (info.mtime, info.size)
            assert data[entry.offset : entry.offset + 5] == data[info.offset_data : info.offset_data + 5]
    assert found[4].device == (4, 64)


def _pax(records: dict[str, str], name: str = "f", data: bytes = b"", kind: bytes = b"0") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.pax_headers = len(data), kind, records
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + data + bytes(-len(data) % 512)


@pytest.mark.parametrize("form", ["old", "0.0", "0.1", "1.0"])
def test_sparse_maps_are_read(form: str) -> None:
    body = b"A" * 512 + b"B" * 512
    size = (1 << 20) + 5000
    if form == "old":
        block = bytearray(tarfile.TarInfo("f").tobuf(tarfile.GNU_FORMAT))
        block[156:157] = b"S"
        block[124:136] = b"%011o\0" % len(body)
        for number, (offset, length) in enumerate(SPARSE):
            block[386 + 24 * number : 410 + 24 * number] = b"%011o\0%011o\0" % (offset, length)
        block[483:495] = b"%011o\0" % size
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        data = bytes(block) + body
    elif form == "0.0":
        # tarfile cannot repeat a record: the header is written by hand.
        text = _records([("GNU.sparse.size", str(size)), ("GNU.sparse.numblocks", "2")])
        for offset, length in SPARSE:
            text += _records([("GNU.sparse.offset", str(offset)), ("GNU.sparse.numbytes", str(length))])
        data = _extended(text) + _pax({}, "f", body)
    elif form == "0.1":
        flat = ",".join(f"{offset},{length}" for offset, length in SPARSE)
        data = _pax({"GNU.sparse.size": str(size), "GNU.sparse.map": flat, "GNU.sparse.name": "f"}, "x", body)
    else:
        stored = b"2\n" + b"".join(b"%d\n%d\n" % extent for extent in SPARSE)
        head = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "f"}
        stored += bytes(-len(stored) % 512)
        data = _pax(head | {"GNU.sparse.realsize": str(size)}, "x", stored + body)
    (entry,) = _read(data + bytes(1024))
    assert (entry.name, entry.size, entry.stored, entry.extents) == (b"f", size, 1024, SPARSE)
    assert data[entry.offset : entry.offset + 1024] == body


def _records(records: list[tuple[str, str]]) -> bytes:
    out = b""
    for key, value in records:
        rest = len(key) + len(value) + 3
        length = rest + len(str(rest + len(str(rest))))
        out += f"{length} {key}={value}\n".encode()
    return out


def _extended(text: bytes) -> bytes:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(text)
    return info.tobuf(tarfile.USTAR_FORMAT) + text + bytes(-len(text) % 512)


def _with(field: slice, value: bytes) -> bytes:
    block = bytearray(tarfile.TarInfo("f").tobuf(tarfile.USTAR_FORMAT))
    block[field] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1024)


BROKEN = {
    "no header": b"x" * 512,
    "half a header": tarfile.TarInfo("f").tobuf()[:300],
    "wrong checksum": b"g" + tarfile.TarInfo("f").tobuf()[1:],
    "data ends early": Layer().file("f", b"x" * 5000).tar()[:2000],
    "unknown type": _with(slice(156, 157), b"Z"),
    "negative size": _with(slice(124, 136), b"\xff" * 12),
    "size beyond 64 bits": _with(slice(124, 136), b"\x80" + b"\xff" * 11),
    "size not octal": _with(slice(124, 136), b"99999999999\0"),
    "owner beyond 32 bits": _with(slice(108, 116), b"\x80\0\0\1\0\0\0\0"),
    "owner is nobody's": _pax({"uid": str(0xFFFFFFFF)}),
    "owner not decimal": _pax({"uid": "-1"}),
    "device beyond Linux": Layer().add("c", tarfile.CHRTYPE, devmajor=4096).tar(),
    "pax size not decimal": _pax({"size": "1e5"}),
    "pax without length": _extended(b"path=x\n"),
    "pax length too long": _extended(b"999 path=x\n"),
    "pax length zero": _extended(b"0 path=x\n"),
    "pax length too short": _extended(b"3 path=x\n"),
    "pax without end": _extended(b"11 path=xyz"),
    "pax length huge": _extended(b"9" * 30 + b" path=x\n"),
    "name longer than a path": _pax({"path": "x/" * 2049}),
    "target longer than a path": _pax({"linkpath": "x" * 4097}, kind=b"2"),
    "name with zero byte": _extended(_records([("path", "a\0b")])) + _pax({}),
    "time not decimal": _pax({"mtime": "soon"}),
    "sparse parts overlap": _pax({"GNU.sparse.size": "99", "GNU.sparse.map": "0,2,1,2"}, "f", b"1234"),
    "sparse parts beyond end": _pax({"GNU.sparse.size": "3", "GNU.sparse.map": "0,4"}, "f", b"1234"),
    "sparse map odd": _pax({"GNU.sparse.size": "9", "GNU.sparse.map": "0,4,5"}, "f", b"1234"),
    "sparse map of other length": _pax({"GNU.sparse.size": "9", "GNU.sparse.map": "0,3"}, "f", b"1234"),
    "sparse name too long": _pax(
        {"GNU.sparse.realsize": "0", "GNU.sparse.major": "0", "GNU.sparse.name": "a/" * 3000}
    ),
    "sparse without size": _pax({"GNU.sparse.map": "0,4"}, "f", b"1234"),
    "sparse 1.0 without map": _pax({"GNU.sparse.major": "1", "GNU.sparse.realsize": "9"}, "f", b"x" * 512),
    "sparse 1.0 with a huge map": _pax(
        {"GNU.sparse.major": "1", "GNU.sparse.realsize": "9"}, "f", b"99999999\n" + b"0\n" * 300
    ),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_broken_archives_are_refused(data: bytes) -> None:
    with pytest.raises(Unpackable):
        _read(data)


def test_a_header_larger_than_allowed_is_not_read() -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40

    def endless() -> object:
        yield info.tobuf(tarfile.GNU_FORMAT)
        while True:
            yield bytes(1 << 16)

    with pytest.raises(Oversized):
        list(tarstream.entries(PlainStream(endless(), "layer"), 1 << 20, lambda _: None))  # type: ignore[arg-type]


def test_many_headers_are_not_read_for_ever() -> None:
    header = _extended(_records([("comment", "x" * 900)]))
    with pytest.raises(Oversized):
        _read(header * 300 + _pax({}), header_bytes=1000)


def test_times_are_clamped_to_the_range_of_squashfs() -> None:
    assert [_read(_pax({"mtime": text}))[0].mtime for text in ("-5", "1.75", str(1 << 40))] == [
        0,
        1,
        0xFFFFFFFF,
    ]


def test_global_headers_and_bytes_after_the_archive_are_skipped() -> None:
    info = tarfile.TarInfo("g")
    info.type, info.size = tarfile.XGLTYPE, 20
    data = info.tobuf() + bytes(512) + Layer().file("f", b"1").tar() + b"garbage"
    assert [entry.name for entry in _read(data)] == [b"f"]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mangled_archives_are_read_or_refused(data: st.DataObject) -> None:
    layer = Layer().dir("d").file("d/f", b"x" * 700, xattrs={"user.a": b"1"}).symlink("l", "d")
    tar = bytearray(layer.file("n" * 120, b"y").tar()[:6144])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(tar) - 1))
        tar[at] = data.draw(st.integers(0, 255))
        block = at - at % 512
        if data.draw(st.booleans()):
            # A right checksum lets the rest of the header be looked at.
            tar[block + 148 : block + 156] = b" " * 8
            tar[block + 148 : block + 156] = b"%06o\0 " % sum(tar[block : block + 512])
    try:
        _read(bytes(tar[: data.draw(st.integers(0, len(tar)))]))
    except Fault:
        return


def _squeezed(how: str, data: bytes) -> bytes:
    if how == "gzip":
        return gzip.compress(data)
    return zstandard.compress(data) if how == "zstd" else data


@pytest.mark.parametrize("how", ["gzip", "zstd", ""])
@pytest.mark.parametrize("chunk_bytes", [1, 1000, 1 << 20])
def test_compressions_are_told_by_their_first_bytes(how: str, chunk_bytes: int) -> None:
    data = bytes(range(256)) * 100
    packed_data = _squeezed(how, data[:9000]) + _squeezed(how, data[9000:])
    chunks = [packed_data[at : at + chunk_bytes] for at in range(0, len(packed_data), chunk_bytes)]
    assert b"".join(compression.plain(chunks, "layer")) == data


@pytest.mark.parametrize(
    "sizes", [(5, 40 << 20, 7, 0, 3), (0, 0, 1 << 20, 9 << 20), (3 << 20, 1, 5 << 20, 1)]
)
@pytest.mark.parametrize("chunk_bytes", [7, 4000, 1 << 20])
def test_gzip_members_of_all_sizes(sizes: tuple[int, ...], chunk_bytes: int) -> None:
    """Another library inflates short members and the members after them, and ends of members lie anywhere."""
    members = [gzip.compress(bytes([number]) * size, mtime=0) for number, size in enumerate(sizes)]
    stream = b"".join(members)
    chunks = [stream[at : at + chunk_bytes] for at in range(0, len(stream), chunk_bytes)]
    found = hashlib.sha256()
    for chunk in compression.plain(chunks, "layer"):
        found.update(chunk)
    expected = b"".join(bytes([number]) * size for number, size in enumerate(sizes))
    assert found.hexdigest() == hashlib.sha256(expected).hexdigest()


def test_skippable_zstd_frames_are_passed_over() -> None:
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    data = b"x" * 5000
    for stream in (skippable + zstandard.compress(data), zstandard.compress(data) + skippable):
        assert b"".join(compression.plain([stream], "layer")) == data


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_bomb_is_stopped_in_little_memory(how: str) -> None:
    blob = packed(Layer().file("zeros", bytes(64 << 20)).tar(), how)
    limits = ImageLimits(ratio=100, unpacked_floor_bytes=1 << 20)
    tracemalloc.start()
    with pytest.raises(Oversized):
        read_layer([blob.data], len(blob.data), blob.diff_id, limits)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_truncated_or_damaged_gzip_is_an_error() -> None:
    data = gzip.compress(bytes(range(256)) * 4000)
    for broken in (data[:-9], data[:500], data[:100] + b"\0" * 50 + data[150:]):
        with pytest.raises(Corrupt):
            list(compression.plain([broken], "layer"))


def test_layer_is_held_against_its_diff_id() -> None:
    blob = packed(Layer().file("f", b"1").tar())
    assert len(read_layer([blob.data], len(blob.data), blob.diff_id, ImageLimits()).entries) == 1
    with pytest.raises(Corrupt):
        read_layer([blob.data], len(blob.data), digest(b"other"), ImageLimits())


def test_empty_layers_are_empty() -> None:
    for tar in (b"", bytes(1024)):
        assert list(read_layer([tar], len(tar), digest(tar), ImageLimits()).entries) == []


def test_too_many_bytes_of_names_and_attributes() -> None:
    for layer in (
        Layer().file("n" * 900).file("m" * 900),
        Layer().file("f", xattrs={"user.a": b"x" * 1800}),
        Layer().file(
            "f",
            b"x" * 20,
            pax_headers={
                "GNU.sparse.size": "99",
                "GNU.sparse.map": ",".join(f"{2 * n},1" for n in range(20)),
            },
        ),
    ):
        blob = packed(layer.tar())
        with pytest.raises(Oversized):
            read_layer([blob.data], len(blob.data), blob.diff_id, ImageLimits(index_bytes=1700))


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("unpacked_bytes", 9000),
        ("ratio", 2),
        ("entries", 1),
        ("index_bytes", 100),
        ("memory_bytes", 700),
        ("header_bytes", 50),
    ],
)
def test_a_limit_names_its_key(key: str, most: int) -> None:
    blob = packed(Layer().file("n" * 99, bytes(9000)).file("m" * 300).tar())
    assert read_layer([blob.data], len(blob.data), blob.diff_id, ImageLimits()).plain_bytes > 9000
    limits = ImageLimits(**{"unpacked_floor_bytes": 0, key: most})
    with pytest.raises(Oversized, match=rf"images\.limits\.{key} in cri\.toml"):
        read_layer([blob.data], len(blob.data), blob.diff_id, limits)


@pytest.mark.parametrize(("kind", "least", "most"), [(b"0", 2900, 3400), (b"5", 1400, 1900)])
def test_entries_are_bounded_by_their_memory(kind: bytes, least: int, most: int) -> None:
    """Long before the end of an endless layer, with entries of any length."""
    info = tarfile.TarInfo("d")
    info.type = kind
    blocks = itertools.repeat(info.tobuf(), 10_000)
    with pytest.raises(Oversized, match="memory_bytes"):
        read_layer(blocks, 1, digest(b""), ImageLimits(memory_bytes=1_000_000))
    assert least < 10_000 - len(list(blocks)) < most


def test_too_many_entries_are_refused() -> None:
    layer = Layer()
    for number in range(50):
        layer.file(str(number))
    blob = packed(layer.tar())
    with pytest.raises(Oversized):
        read_layer([blob.data], len(blob.data), blob.diff_id, ImageLimits(entries=49))


def _old_sparse(parts: int) -> bytes:
    """A type S entry of this many empty parts: 4 in its header, 21 in each further block."""
    pair = b"%011o\0" % 0 * 2
    block = bytearray(tarfile.TarInfo("f").tobuf(tarfile.GNU_FORMAT))
    block[156:157] = b"S"
    block[386:482] = pair * 4
    block[482] = 1
    block[483:495] = b"%011o\0" % 0
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    blocks, left = [bytes(block)], parts - 4
    while left > 0:
        here = min(left, 21)
        left -= here
        blocks.append((pair * here).ljust(504, b"\0") + (b"\1" if left > 0 else b"\0") + bytes(7))
    return b"".join(blocks)


def _sparse_parts(form: str, parts: int) -> bytes:
    """A file of no bytes, mapped by this many empty parts."""
    if form == "old":
        return _old_sparse(parts)
    if form == "0.0":
        pair = _records([("GNU.sparse.offset", "0"), ("GNU.sparse.numbytes", "0")])
        return _extended(_records([("GNU.sparse.size", "0")]) + pair * parts) + _pax({}, "f")
    if form == "0.1":
        return _pax({"GNU.sparse.size": "0", "GNU.sparse.map": ",".join(["0"] * 2 * parts)})
    stored = b"%d\n" % parts + b"0\n" * 2 * parts
    head = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "f"}
    return _pax(head | {"GNU.sparse.realsize": "0"}, "x", stored + bytes(-len(stored) % 512))


@pytest.mark.parametrize("form", ["old", "0.0", "0.1", "1.0"])
def test_sparse_maps_of_too_many_parts_are_refused(form: str) -> None:
    # The old form is looked at block by block.
    beyond = MAX_EXTENTS + (1 if form != "old" else 22)
    for parts, refused in ((MAX_EXTENTS, False), (beyond, True)):
        stream = PlainStream(iter([_sparse_parts(form, parts) + bytes(1024)]), "layer")
        if refused:
            with pytest.raises(Unpackable, match=f"{MAX_EXTENTS}"):
                list(tarstream.entries(stream, 8 << 20, lambda _: None))
        else:
            (entry,) = tarstream.entries(stream, 8 << 20, lambda _: None)
            assert (entry.name, entry.size, entry.extents) == (b"f", 0, ())
