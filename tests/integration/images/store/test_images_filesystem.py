"""Layers to squashfs, mounted and compared with what umoci unpacks, path by path."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from daemonkit.faults import Fault
from images.image_errors import Unpackable
from images.rootfs.plan import MAX_OWNERS
from images.worker.layer_workers import BuiltFilesystem
from tests.support.images.images import BuiltImage, Layer, Seen, build, digest, packed, seen, write_layout
from tests.support.images.random_layers import random_layer, timeless
from tests.support.images.stacks import built, mounted

pytestmark = pytest.mark.root
NEEDED = ("umoci", "tar2sqfs", "mount")


@pytest.fixture(autouse=True)
def _tools() -> None:
    for tool in NEEDED:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def _ours(
    image: BuiltImage, directory: Path, ends: Sequence[int] = (), cached: bool = False
) -> dict[bytes, Seen]:
    made = built(image, directory, ends, cached)
    with mounted([out for out, _ in made], directory / "mounted") as root:
        return seen(root)


def _umoci(image: BuiltImage, directory: Path) -> dict[bytes, Seen]:
    directory.mkdir()
    layout = write_layout(directory / "layout", image)
    command = ["umoci", "unpack", "--image", f"{layout}:latest", str(directory / "bundle")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return seen(directory / "bundle/rootfs")


def _differences(
    reference: dict[bytes, Seen], ours: dict[bytes, Seen]
) -> dict[bytes, tuple[Seen | None, Seen | None]]:
    reference, ours = timeless(reference), timeless(ours)
    pairs = {name: (reference.get(name), ours.get(name)) for name in reference | ours}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _lower() -> Layer:
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    layer = Layer()
    layer.dir("./", mode=0o751).dir("a", mode=0o2775, gid=4_000_000_000)
    layer.file("a/x", b"hello", mode=0o4755).link("a/y", "a/x")
    layer.symlink("s", "a").file("s/z", b"through", uid=65534, gid=70000)
    layer.file("big", b"q" * 300_000).file("empty").add("fifo", tarfile.FIFOTYPE)
    layer.add("null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666)
    layer.add("loop", tarfile.BLKTYPE, devmajor=7, devminor=1 << 18, mode=0o660)
    layer.file("a/cap", b"1", xattrs={"security.capability": capability, "user.x": b"\xff\x00\n=1"})
    layer.dir("xd", xattrs={"user.on.dir": b"1", "trusted.t": b"2"})
    layer.file("l" * 200 + "/" + "m" * 255, b"1").file("u\udcff", b"2").file("ümlaut", b"3")
    layer.file("new\nline", b"4").symlink("dangling", "/no/where").symlink("long", "t" * 4000)
    layer.file("/abs", b"a").file("../../up", b"u").file("a/../b/../c", b"c")
    return layer.file("h1", b"one").file("h2", b"lower")


def _middle() -> Layer:
    layer = Layer()
    layer.file("h1", b"new").link("k", "h2").file("h2", b"upper").file(".wh.big").dir("a", mode=0o700)
    layer.file("a/.wh.y").symlink("s2", "/").file("s2/viaroot", b"1").link("linked-symlink", "s")
    return layer.link("escaped", "../../../a/x").symlink("dir-again", "a").link("null2", "null")


def _upper() -> Layer:
    layer = Layer(tarfile.GNU_FORMAT)
    return layer.dir("empty").file("empty/now", b"dir").file("b" * 150, b"gnu", uid=3_000_000)


def test_odd_layers_give_the_reference_tree(tmp_path: Path) -> None:
    tars = [_lower().tar(), _middle().tar(), _upper().tar()]
    reference = _umoci(build(tars), tmp_path / "umoci")
    # umoci's release in Debian knows no zstd.
    image = build([packed(tars[0]), packed(tars[1], "zstd"), packed(tars[2], "")])
    for name, ends in {"one": (), "two": (1,), "three": (1, 2)}.items():
        assert _differences(reference, _ours(image, tmp_path / name, ends)) == {}


@pytest.mark.parametrize("seed", range(40))
def test_random_layers_give_the_reference_tree_or_are_refused_by_both(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    files: list[str] = []
    image = build([random_layer(rng, files).tar() for _ in range(rng.randint(1, 3))])
    try:
        ours = _ours(image, tmp_path / "ours")
    except Fault:
        with pytest.raises(subprocess.CalledProcessError):
            _umoci(image, tmp_path / "umoci")
        return
    assert _differences(_umoci(image, tmp_path / "umoci"), ours) == {}


@pytest.mark.parametrize("seed", range(40))
def test_random_stack_equals_its_merged_layers(tmp_path: Path, seed: int) -> None:
    rng = random.Random(1000 + seed)
    files: list[str] = []
    image = build([random_layer(rng, files).tar() for _ in range(rng.randint(2, 6))])
    ends = [end for end in range(1, len(image.layers)) if rng.random() < 0.7]
    try:
        one = _ours(image, tmp_path / "one")
    except Fault:
        with pytest.raises(Fault):
            _ours(image, tmp_path / "stack", ends)
        return
    # Times too: the test sets them on both sides.
    assert _ours(image, tmp_path / "stack", ends) == one
    again = built(image, tmp_path / "cached", ends, cached=True)
    for out, made in again:
        assert made == BuiltFilesystem(digest((tmp_path / "stack" / out.name).read_bytes()), made.accounts)


def _stacked() -> list[Layer]:
    """Merging of two layers, beyond the content of a single layer."""
    lower = Layer().dir("./", mode=0o711, uid=7).dir("d", mode=0o2770, gid=5, xattrs={"user.d": b"1"})
    lower.file("d/kept").file("d/gone", b"1").file("d/linked", b"linked").dir("d/sub").file("d/sub/x", b"1")
    lower.dir("o").file("o/a").dir("o/b").file("o/b/c").dir("f").file("f/x").file("g", b"1").symlink("s", "d")
    lower.file("back", b"1").file("p/q/r", b"implied")
    middle = (
        Layer().file("d/.wh.gone").file("s/through", b"2").link("other", "d/linked").file("f", b"file now")
    )
    middle.dir("o").file("o/.wh..wh..opq").file("o/new").dir("g").file("g/in").file(".wh.back")
    middle.file(".wh.d.x").file("never/.wh.there").file("p/q/s", b"2").dir("d/sub", mode=0o700)
    middle.file("evil", xattrs={"trusted.overlay.opaque": b"y", "user.fine": b"1"})
    upper = Layer().file("back", b"3").file(".wh.s").file("s", b"no link").link("o/again", "other").dir("f")
    upper.file("d/sub/.wh.x").file("d/sub/x/y", b"dir now").dir("e", xattrs={"trusted.overlay.opaque": b"y"})
    return [lower, middle, upper]


@pytest.mark.parametrize("ends", [(1,), (2,), (1, 2)])
def test_stacked_layers_give_the_files_of_umoci(tmp_path: Path, ends: tuple[int, ...]) -> None:
    image = build([layer.tar() for layer in _stacked()])
    reference = _umoci(image, tmp_path / "umoci")
    ours = _ours(image, tmp_path / "stack", ends)
    # umoci keeps files that hide files from overlayfs.
    hostile = {name: one for name, one in reference.items() if name in (b"evil", b"e")}
    assert set(_differences(reference, ours)) <= set(hostile)
    assert dict(ours[b"evil"].xattrs) == {"user.fine": b"1"}
    assert ours == _ours(image, tmp_path / "one")


def test_device_0_0_hides_the_path_below_and_is_not_visible(tmp_path: Path) -> None:
    device = Layer().add("a", tarfile.CHRTYPE, devmajor=0, devminor=0)
    device.add("d/new", tarfile.CHRTYPE, devmajor=0, devminor=0).link("d/hard", "d/new")
    image = build([Layer().file("a", b"1").file("d/b").tar(), device.tar(), Layer().file("d/c").tar()])
    for name, ends in {"one": (), "two": (1,), "three": (1, 2)}.items():
        assert set(_ours(image, tmp_path / name, ends)) == {b".", b"d", b"d/b", b"d/c"}


def test_the_lowest_filesystem_has_no_marks_for_overlayfs(tmp_path: Path) -> None:
    lone = Layer().file(".wh.a").dir("o").file("o/.wh..wh..opq").file("o/x")
    (first, second) = built(build([lone.tar(), lone.tar()]), tmp_path / "stack", (1,))
    for out in (first[0], second[0]):
        with mounted([out], tmp_path / out.name) as root:
            assert set(seen(root)) == {b".", b"o", b"o/x"}
            assert not any(key.startswith("trusted.") for one in seen(root).values() for key, _ in one.xattrs)


def test_more_owners_than_squashfs_can_hold_are_refused(tmp_path: Path) -> None:
    layer = Layer()
    # With root's directory one more than an index of 16 bits names.
    for number in range(MAX_OWNERS // 2 + 1):
        layer.file(f"f{number}", uid=2 * number + 1, gid=2 * number + 2)
    with pytest.raises(Unpackable, match=f"{MAX_OWNERS + 2} owners"):
        built(build([layer.tar()]), tmp_path / "many")


def test_directories_keep_the_times_of_their_entries(tmp_path: Path) -> None:
    image = build([Layer().dir("d", mtime=1000).file("d/f", mtime=2000).dir("d/e", mtime=3000).tar()])
    tree = _ours(image, tmp_path / "ours")
    assert [tree[name].mtime for name in (b"d", b"d/f", b"d/e")] == [1000, 2000, 3000]


def test_same_image_same_bytes(tmp_path: Path) -> None:
    rng = random.Random(1)
    layer = Layer()
    for number in range(300):
        layer.file(f"d{number % 7}/f{number}", rng.randbytes(rng.choice([10, 5000, 300_000])))
    image = build([layer.tar(), Layer().file("d1/f1", b"x").tar()])
    digests = set()
    for number in range(3):
        ((out, _),) = built(image, tmp_path / str(number))
        digests.add(hashlib.sha256(out.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_sparse_file_of_ten_gigabytes(tmp_path: Path) -> None:
    head = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "sparse"}
    size = 10 << 30
    extents = [(0, 512), (5 << 30, 1024), (size - 512, 512)]
    stored = b"%d\n" % len(extents) + b"".join(b"%d\n%d\n" % extent for extent in extents)
    stored += bytes(-len(stored) % 512)
    body = b"A" * 512 + b"B" * 1024 + b"C" * 512
    layer = Layer().file("x", stored + body, pax_headers=head | {"GNU.sparse.realsize": str(size)})
    ((out, _),) = built(build([layer.tar()]), tmp_path / "ours")
    assert out.stat().st_size < 2 << 20
    with mounted([out], tmp_path / "mounted") as root, (root / "sparse").open("rb") as file:
        assert (root / "sparse").stat().st_size == size
        for (offset, length), byte in zip(extents, b"ABC", strict=True):
            file.seek(max(offset - 1, 0))
            assert file.read(length + 2).strip(b"\0") == bytes([byte]) * length


def _many_files(count: int) -> bytes:
    """Make a layer of so many empty files; tarfile would be too slow."""
    template = tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT)
    empty = sum(template[:148]) + sum(template[156:]) + 8 * 0x20
    blocks = []
    for number in range(count):
        name = b"d%d/f%d" % (number % 100, number)
        checksum = b"%06o\0 " % (empty + sum(name))
        blocks.append(name + template[len(name) : 148] + checksum + template[156:])
    return b"".join(blocks) + bytes(1024)


@pytest.mark.slow
def test_a_hundred_thousand_files_and_a_deep_path(tmp_path: Path) -> None:
    deep = Layer().file("p/" * 1000 + "f", b"deep")
    ((out, _),) = built(build([_many_files(100_000), deep.tar()]), tmp_path / "ours")
    with mounted([out], tmp_path / "mounted") as root:
        assert sum(len(os.listdir(root / f"d{number}")) for number in range(100)) == 100_000
        assert (root / ("p/" * 1000) / "f").read_bytes() == b"deep"
