"""Any bytes from a registry: read, or refused with a Fault; never another error, never without a bound."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cri.container.stored_images import StoredImages
from daemonkit.faults import Fault, Refused
from images.bounds.cancel import CancelToken
from images.bounds.limits import ImageLimits
from images.globs import Globs
from images.image_errors import Corrupt, Oversized
from images.layer import compression, tarstream
from images.layer.layers import read_layer
from images.layer.stream import PlainStream
from images.registry import manifests, reading
from images.registry.archives import open_layout
from images.registry.conversation.auth import _token
from images.registry.facts import ImageFacts, ManifestFacts, pack_config, pack_image, unpack_config
from images.registry.hosts import hosts_for
from images.registry.manifests import OCI_MANIFEST, Manifest, Platform
from images.rpc.cri_messages import image_message, verbose_info
from images.store.catalogue import Catalogue, StoredImage
from images.store.db import FilesystemRow, ImageRow
from tests.support.images.images import Layer, build, digest, packed, write_layout

AMD64 = Platform("linux", "amd64")
MANY = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TAR = Layer().dir("d").file("d/f", b"x" * 3000, xattrs={"user.a": b"1"}).symlink("l", "d").tar()
STREAMS = {"gzip": gzip.compress(TAR, mtime=0), "zstd": zstandard.compress(TAR), "plain": TAR}


def _mangled(data: st.DataObject, sound: bytes) -> bytes:
    """Bytes changed, cut, doubled, put in."""
    mangled = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(mangled)))
        match data.draw(st.integers(0, 3)):
            case 0:
                mangled[at : at + 1] = data.draw(st.binary(max_size=2))
            case 1:
                del mangled[at : at + data.draw(st.integers(0, 600))]
            case 2:
                mangled[at:at] = mangled[at : at + data.draw(st.integers(0, 600))]
            case _:
                mangled[at:at] = data.draw(st.binary(max_size=16))
    return bytes(mangled)


def _cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("how", STREAMS)
@MANY
@given(st.data())
def test_mangled_layers_are_read_or_refused(how: str, data: st.DataObject) -> None:
    blob = _mangled(data, STREAMS[how])
    chunks = _cut(blob, data.draw(st.sampled_from([1, 7, 512, 1 << 20])))
    limits = ImageLimits(unpacked_floor_bytes=1 << 20, header_bytes=4096, entries=100, index_bytes=10_000)
    try:
        read_layer(chunks, len(blob), digest(TAR), limits)
    except Fault:
        return
    assert b"".join(compression.plain([blob], "x")) == TAR


_RECORD = st.tuples(
    st.sampled_from(
        [
            "path", "linkpath", "size", "uid", "gid", "mtime", "SCHILY.xattr.user.a", "GNU.sparse.major",
            "GNU.sparse.minor", "GNU.sparse.name", "GNU.sparse.realsize", "GNU.sparse.map", "GNU.sparse.size",
            "GNU.sparse.numblocks", "GNU.sparse.offset", "GNU.sparse.numbytes", "comment",
        ]
    ),
    st.one_of(
        st.sampled_from(["", "0", "1", "-1", "512", "0,10,20,10", "9" * 30, "1.5", "../../x", "a/" * 3000]),
        st.integers(-1, 1 << 70).map(str),
        st.text(alphabet="0123456789,.-x\n", max_size=12),
    ),
)  # fmt: skip


@MANY
@given(
    st.lists(_RECORD, max_size=8), st.sampled_from([b"0", b"1", b"2", b"5", b"S"]), st.binary(max_size=600)
)
def test_any_pax_records_are_read_or_refused(
    records: list[tuple[str, str]], kind: bytes, body: bytes
) -> None:
    headers = b""
    for key, value in records:
        rest = f" {key}={value}\n".encode()
        size = len(rest) + 1
        while size != len(rest) + len(str(size)):
            size += 1
        headers += str(size).encode() + rest
    layer = Layer().add("pax", b"x", headers).add("f", kind, body).file("after")
    stream = PlainStream(iter([layer.tar()]), "x")
    try:
        found = list(tarstream.entries(stream, 1 << 16, lambda _: None))
    except Fault:
        return
    for entry in found:
        assert len(entry.name) <= tarstream.PATH_MAX and entry.stored >= 0 and 0 <= entry.uid < 1 << 32
        end = 0
        for offset, length in entry.extents or ():
            assert offset >= end and length >= 0
            end = offset + length
        assert end <= entry.size


_SOUND = build([packed(TAR)], {"Env": ["A=b"], "Cmd": ["sh"], "User": "1"}, author="é")


@MANY
@given(st.data())
@example(None)
def test_mangled_documents_are_read_or_refused(data: st.DataObject | None) -> None:
    for sound in (_SOUND.manifest, _SOUND.config):
        raw = b'{"config":"\\ud800"}' if data is None else _mangled(data, sound)
        for read in (
            lambda raw: manifests.manifest(manifests.parse_json(raw, "x"), "x", 10),
            lambda raw: manifests.index_entries(manifests.parse_json(raw, "x"), "x"),
            lambda raw: manifests.kind_of(manifests.parse_json(raw, "x"), OCI_MANIFEST, "x"),
            lambda raw: manifests.config(raw, "x", 1),
        ):
            try:
                read(raw)
            except Fault:
                continue


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=6)
    | st.sampled_from(["\ud800", "a\0b", "1", "-1", "4294967296", "www-data:x", "٣", "1" * 5000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_RUN = st.dictionaries(
    st.sampled_from(["Env", "Cmd", "Entrypoint", "User", "WorkingDir", "StopSignal", "Labels", "Volumes"]),
    _ANYTHING | st.lists(st.text(max_size=4) | st.just("A=\ud800"), max_size=3),
)


class _One:
    """A manager and its store, with a single image."""

    def __init__(self, image: StoredImage) -> None:
        self.store = self
        self.image = image

    def resolve(self, reference: str) -> StoredImage:
        return self.image

    def read_file(self, image: StoredImage, path: str, limit: int) -> bytes | None:
        return b"\xff\0:::"


@MANY
@given(_RUN)
@example({"User": "\ud800"})
@example({"Env": ["A=\udfff"]})
def test_any_image_configuration_can_be_listed(run: dict[str, object]) -> None:
    """A hostile configuration must not keep the kubelet from listing other images."""
    document = {"os": "linux", "architecture": "amd64", "config": run, "rootfs": {"diff_ids": []}}
    raw = json.dumps(document).encode()
    try:
        config = unpack_config(pack_config(reading.read_config(raw, "x", 0)))
    except Fault:
        return
    manifest = reading.read_document(_SOUND.manifest, "", "x", AMD64, 10)
    assert isinstance(manifest, ManifestFacts)
    bare = ManifestFacts(manifest.kind, Manifest(manifest.manifest.config, ()))
    facts = pack_image(ImageFacts(bare, config))
    row = ImageRow(digest(raw), digest(b"chain"), digest(b"m"), b"{}", raw, (), 1, facts=facts)
    filesystem = FilesystemRow(row.chain_id, "squashfs", 1)
    catalogue = Catalogue([row], [], [filesystem], lambda chain: Path("/x"), None, Globs(()))
    image = catalogue.images[row.id]
    assert image_message(image).SerializeToString()
    assert json.loads(verbose_info(image)["info"])
    root = StoredImages(_One(image)).resolve("x")  # type: ignore[arg-type]
    for text in (*root.env, *root.cmd, *root.entrypoint, root.user, root.working_dir, root.stop_signal):
        assert text.encode() is not None


def test_any_depth_of_nesting_is_read_or_refused() -> None:
    for depth in (400, 900, 3000, 200_000):
        for raw in (b'{"a":' * depth + b"1" + b"}" * depth, b"[" * depth):
            try:
                document = manifests.parse_json(raw, "x")
            except Corrupt:
                continue
            assert json.dumps(document)


HOSTS = b"""server = "https://r.example"
[host."https://m.example"]
capabilities = ["pull", "resolve"]
ca = "ca.pem"
client = [["c.pem", "c.key"]]
[host."https://m.example".header]
x-a = ["b"]
"""


@MANY
@given(st.data())
def test_mangled_hosts_file_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    (tmp_path / "r.example").mkdir(exist_ok=True)
    (tmp_path / "r.example/hosts.toml").write_bytes(_mangled(data, HOSTS))
    try:
        found = hosts_for("r.example", tmp_path)
    except Refused:
        return
    for host in found:
        assert host.scheme in ("http", "https") and host.netloc
        for name, value in host.headers:
            assert name.isascii() and value.isprintable()


@MANY
@given(st.text(alphabet="abz019.-_:[]/@ %", max_size=30))
@example("..")
@example("a/../../b")
def test_hosts_file_of_any_registry_name_is_within_the_folder(tmp_path: Path, registry: str) -> None:
    from images.registry import names
    from images.registry.hosts import _directories

    try:
        host = names.parse(f"{registry}/app").host
    except Fault:
        return
    for directory in _directories(host, tmp_path):
        assert directory.parent == tmp_path and ".." not in directory.name.split("/")


@MANY
@given(st.data())
def test_mangled_archives_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    archive = tmp_path / "a.tar"
    if not (tmp_path / "sound").exists():
        layer = Layer()
        sound = write_layout(tmp_path / "layout", _SOUND, "a:1")
        for file in sorted(path for path in sound.rglob("*") if path.is_file()):
            layer.file(str(file.relative_to(sound)), file.read_bytes())
        (tmp_path / "sound").write_bytes(layer.tar())
    mangled = _mangled(data, (tmp_path / "sound").read_bytes())
    how = data.draw(st.sampled_from(["", "gzip", "zstd"]))
    packed_bytes = packed(mangled, how).data
    # Damage below the compression, too.
    archive.write_bytes(_mangled(data, packed_bytes) if how and data.draw(st.booleans()) else packed_bytes)
    try:
        layout = open_layout(archive, ImageLimits(), tmp_path / "work", CancelToken())
        for found in layout.images():
            layout.manifest(found.target.digest, 1 << 20, None)  # type: ignore[arg-type]
    except Fault:
        return


class _Answer:
    """An HTTP answer with a body."""

    def __init__(self, body: bytes) -> None:
        self.raw = self
        self._body = body

    def read(self, amount: int, decode_content: bool) -> bytes:
        return self._body[:amount]


@MANY
@given(st.binary(max_size=40) | _ANYTHING.map(lambda v: json.dumps({"token": v}).encode()))
def test_any_answer_of_a_token_service_is_read_or_refused(body: bytes) -> None:
    try:
        token = _token(_Answer(body), "t.example")  # type: ignore[arg-type]
    except Fault:
        return
    assert token.isascii() and token.isprintable()


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_mangled_streams_stay_within_their_memory(how: str) -> None:
    """A false size of a window or a block must not be believed."""
    sound = packed(Layer().file("zeros", bytes(32 << 20)).tar(), how).data
    for at in range(2, 24):
        blob = bytearray(sound)
        blob[at] ^= 0xFF
        tracemalloc.start()
        try:
            for _ in compression.plain([bytes(blob)], "x"):
                pass
        except (Corrupt, Oversized):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20, at
