"""Images exported as OCI layouts: other tools' view of the layouts, and images without export."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.registry import names
from images.registry.credentials import ANONYMOUS
from images.rpc.service import add_image_services
from protectctl.__main__ import main
from tests.support.images.image_manager import running
from tests.support.images.images import Blob, BuiltImage, Layer, build, digest, packed, write_layout
from tests.support.images.registry import LyingRegistry, content
from tests.support.observe.messages import next_message
from xenpod_proto.images.v1 import images_pb2 as pb
from xenpod_proto.images.v1 import images_pb2_grpc

ONE = Layer().dir("etc").file("etc/one", b"1" * 70_000).tar()
TWO = Layer().file("etc/two", b"2" * 3_000_000).tar()
TOP = packed(TWO, "")
EMPTY = packed(Layer().tar())
IMAGE = build([packed(ONE), TOP, EMPTY, EMPTY], {"User": "7"})
OTHER = build([packed(ONE), packed(Layer().file("other").tar(), "zstd")])
APP, SECOND, THIRD = "example.com/team/app:v1", "example.com/team/app:latest", "example.com/other:v1"


class Node:
    """The manager behind a socket, and the command."""

    def __init__(self, manager: ImageManager, socket: Path, folder: Path) -> None:
        self.manager, self.socket, self.folder = manager, socket, folder

    async def command(self, *arguments: str, status: int = 0) -> None:
        everything = ["image", *arguments, "--cri-socket", str(self.socket)]
        assert await asyncio.to_thread(main, everything) == status

    async def add(self, image: BuiltImage, name: str) -> None:
        await self.command("import", str(write_layout(self.folder / name.replace("/", "_"), image, name)))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running(ImageSettings(tmp_path / "state", tmp_path / "certs.d")) as manager:
        add = lambda server: add_image_services(server, manager)  # noqa: E731
        async with serve_unix(tmp_path / "cri.sock", add, name="test", grace=0.1):
            node = Node(manager, tmp_path / "cri.sock", tmp_path)
            await node.add(IMAGE, APP)
            await node.add(OTHER, THIRD)
            yield node


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _index(layout: Path) -> list[dict[str, object]]:
    found = json.loads((layout / "index.json").read_text())["manifests"]
    assert isinstance(found, list)
    return found


async def test_exported_layout_equals_the_pulled_image(node: Node, tmp_path: Path) -> None:
    await node.command("tag", APP, SECOND)
    await node.command("export", IMAGE.id[7:19], str(tmp_path / "out"), "--directory")
    out = tmp_path / "out"
    found = {f"sha256:{path.name}": path.read_bytes() for path in (out / "blobs/sha256").iterdir()}
    assert found == {**IMAGE.blobs, digest(IMAGE.manifest): IMAGE.manifest}
    assert json.loads((out / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    tagged = {
        name: IMAGE.descriptor
        | {
            "annotations": {
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            }
        }
        for name in (SECOND, APP)
    }
    assert _index(out) == list(tagged.values())


async def test_an_archive_comes_back(node: Node, tmp_path: Path) -> None:
    """Removed and imported again: the same images, names and digests."""
    before = {one.id: one.repo_tags for one in node.manager.store.images()}
    await node.command("export", APP, THIRD, str(tmp_path / "out.tar"))
    for image in before:
        await node.command("remove", image)
    await node.command("import", str(tmp_path / "out.tar"))
    assert {one.id: one.repo_tags for one in node.manager.store.images()} == before
    await node.command("verify")


async def test_a_name_exports_itself_alone(node: Node, tmp_path: Path) -> None:
    await node.command("tag", APP, SECOND)
    await node.command("export", SECOND, str(tmp_path / "one"), "--directory")
    (entry,) = _index(tmp_path / "one")
    assert entry["annotations"]["io.containerd.image.name"] == SECOND  # type: ignore[index]
    await node.command("export", SECOND, APP, SECOND, str(tmp_path / "both"), "--directory")
    assert len(_index(tmp_path / "both")) == 2


async def test_a_tag_of_two_repositories_is_written_whole(node: Node, tmp_path: Path) -> None:
    await node.command("export", APP, THIRD, str(tmp_path / "out"), "--directory")
    names_in = [one["annotations"]["org.opencontainers.image.ref.name"] for one in _index(tmp_path / "out")]  # type: ignore[index]
    assert names_in == [APP, THIRD]


async def test_an_image_without_a_tag(node: Node, tmp_path: Path) -> None:
    await node.command("untag", APP)
    await node.command("export", IMAGE.id, str(tmp_path / "out"), "--directory")
    assert _index(tmp_path / "out") == [IMAGE.descriptor]


async def test_skopeo_copies_an_exported_archive(node: Node, tmp_path: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    await node.command("export", APP, str(tmp_path / "out.tar"))
    source = f"oci-archive:{tmp_path}/out.tar:v1"
    raw = _run("skopeo", "inspect", "--raw", source)
    assert raw.encode() == IMAGE.manifest
    _run("skopeo", "copy", "--insecure-policy", source, f"dir:{tmp_path}/dir")
    assert digest((tmp_path / "dir" / "manifest.json").read_bytes()) == digest(IMAGE.manifest)


async def test_umoci_unpacks_an_exported_layout(node: Node, tmp_path: Path) -> None:
    if shutil.which("umoci") is None:
        pytest.skip("umoci is not installed")
    await node.command("export", APP, str(tmp_path / "out"), "--directory")
    _run("umoci", "unpack", "--rootless", "--image", f"{tmp_path}/out:v1", tmp_path / "bundle")
    etc = tmp_path / "bundle/rootfs/etc"
    assert (etc / "one").read_bytes() == b"1" * 70_000 and (etc / "two").read_bytes() == b"2" * 3_000_000


@contextmanager
def _containerd(folder: Path) -> Iterator[list[str]]:
    """ctr with a containerd of its own, which has nothing but a store of content and images."""
    config = folder / "containerd.toml"
    folder.mkdir()
    config.write_text(
        f"version = 2\nroot = '{folder}/root'\nstate = '{folder}/state'\n"
        "disabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.internal.v1.opt']\n"
        f"[grpc]\naddress = '{folder}/sock'\n[ttrpc]\naddress = '{folder}/ttrpc'\n"
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(["containerd", "--config", config], stdout=log, stderr=log)
    try:
        ctr = ["ctr", "--address", f"{folder}/sock", "--connect-timeout", "60s"]
        _run(*ctr, "version")
        yield ctr
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.root
async def test_containerd_imports_an_exported_archive(node: Node, tmp_path: Path) -> None:
    if shutil.which("containerd") is None:
        pytest.skip("containerd is not installed")
    await node.command("export", APP, THIRD, str(tmp_path / "out.tar"))

    def imported() -> str:
        with _containerd(tmp_path / "containerd") as ctr:
            _run(*ctr, "images", "import", "--snapshotter", "native", tmp_path / "out.tar")
            _run(*ctr, "images", "check", "--snapshotter", "native")
            return _run(*ctr, "images", "list")

    listed = {
        line.split()[0]: line.split()[2] for line in (await asyncio.to_thread(imported)).splitlines()[1:]
    }
    assert listed == {APP: digest(IMAGE.manifest), THIRD: digest(OTHER.manifest)}


async def test_a_damaged_or_missing_layer_is_not_exported(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blob = node.manager.store.files.blob_path(digest(TOP.data))
    whole = blob.read_bytes()
    out = tmp_path / "out.tar"
    for data, text in (
        (whole[:-1] + b"!", "no longer has its digest"),
        (whole[:-1], "no longer has its length"),
        (None, "is not kept"),
    ):
        blob.unlink() if data is None else blob.write_bytes(data)
        await node.command("export", APP, str(out), status=1)
        error = capsys.readouterr().err
        assert digest(TOP.data) in error and text in error and "[FAILED_PRECONDITION]" in error
        assert not out.exists() and not list(tmp_path.glob(".out*"))


async def test_layers_never_fetched_are_not_exported(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same contents compressed otherwise: the filesystems were present, no layer was fetched."""
    twin = build([packed(ONE, "zstd"), packed(TWO), EMPTY, EMPTY], {"User": "8"})
    with LyingRegistry("twin", "1", twin) as registry:
        await node.manager.pull(names.parse(f"{registry.netloc}/twin:1"), ANONYMOUS)
        await node.command("export", twin.id, str(tmp_path / "out.tar"), status=1)
        error = capsys.readouterr().err
        assert f"the layer {digest(twin.layers[0].data)} is not kept" in error and "pull it again" in error
        # As the error says:
        for image in (twin, IMAGE):
            await node.command("remove", image.id)
        await node.manager.pull(names.parse(f"{registry.netloc}/twin:1"), ANONYMOUS)
        await node.command("export", twin.id, str(tmp_path / "out.tar"))


DOCKER = "application/vnd.docker."


def _docker_image(layer: Blob) -> BuiltImage:
    rootfs = {"type": "layers", "diff_ids": [layer.diff_id]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": rootfs}).encode()
    described = {
        "mediaType": f"{DOCKER}container.image.v1+json",
        "digest": digest(config),
        "size": len(config),
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{DOCKER}distribution.manifest.v2+json",
        "config": described,
        "layers": [layer.descriptor | {"mediaType": f"{DOCKER}image.rootfs.diff.tar.gzip"}],
    }
    blobs = {digest(layer.data): layer.data, digest(config): config}
    return BuiltImage((layer,), config, json.dumps(manifest).encode(), blobs)


async def test_manifest_of_docker_becomes_a_manifest_of_oci(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Id and layers stay, the digest changes, and a message tells the change."""
    image = _docker_image(packed(Layer().file("docker", b"d" * 5000).tar()))
    with LyingRegistry("docker", "1", image) as registry:
        manifest = content(image.manifest, f"{DOCKER}distribution.manifest.v2+json")
        registry.answers["/v2/docker/manifests/1"] = manifest
        name = f"{registry.netloc}/docker:1"
        await node.manager.pull(names.parse(name), ANONYMOUS)
    await node.command("export", name, str(tmp_path / "out"), "--directory")
    (entry,) = _index(tmp_path / "out")
    said = capsys.readouterr().err
    assert all(text in said for text in (image.id, digest(image.manifest), str(entry["digest"])))
    assert "is in Docker's format" in said
    (written,) = build([image.layers[0]]).layers
    found = json.loads((tmp_path / "out/blobs/sha256" / str(entry["digest"])[7:]).read_bytes())
    assert found["layers"] == [written.descriptor]
    assert found["config"]["digest"] == image.id
    umoci = shutil.which("umoci")
    if umoci is None:
        pytest.skip("umoci is not installed")
    _run(umoci, "unpack", "--rootless", "--image", f"{tmp_path}/out:1", tmp_path / "bundle")
    assert (tmp_path / "bundle/rootfs/docker").read_bytes() == b"d" * 5000
    await node.command("remove", name)
    await node.command("import", str(tmp_path / "out"))
    assert node.manager.store.resolve(name).id == image.id


async def _swept(node: Node, path: Path) -> None:
    """Wait until the file is gone; the removal follows the caller's answer."""
    async with asyncio.timeout(60):
        while await asyncio.to_thread(path.exists):
            await asyncio.to_thread(node.manager.store.files.usage)


async def test_a_removal_waits_for_the_export(node: Node) -> None:
    """Layers go with the end of the export that sends them."""
    blob = node.manager.store.files.blob_path(digest(TOP.data))
    async with channel(node.socket) as link:
        exporting = images_pb2_grpc.ImagesStub(link).Export(pb.ExportRequest(images=[APP]))
        assert (await next_message(exporting)).file.path == "oci-layout"
        await node.command("remove", APP)
        assert blob.exists()
        sent = b""
        while isinstance(event := await exporting.read(), pb.ExportEvent):
            sent += event.data
        assert TOP.data in sent
    await _swept(node, blob)


async def test_export_ends_with_its_caller(node: Node) -> None:
    """The export ends, and no longer keeps removed images."""
    big = build([packed(Layer().file("noise", os.urandom(64 << 20)).tar(), "")])
    await node.add(big, "example.com/big:1")
    blob = node.manager.store.files.blob_path(digest(big.layers[0].data))
    async with channel(node.socket) as link:
        exporting = images_pb2_grpc.ImagesStub(link).Export(pb.ExportRequest(images=[big.id]))
        while len((await next_message(exporting)).data) < 1 << 20:
            pass
        await node.command("remove", big.id)
        assert blob.exists()
        exporting.cancel()
        await _swept(node, blob)


@pytest.mark.parametrize(
    ("asked", "code"),
    [(["example.com/none:1"], "NOT_FOUND"), ([], "INVALID_ARGUMENT"), ([""], "INVALID_ARGUMENT")],
)
async def test_export_of_an_unknown_image_or_of_none_fails(node: Node, asked: list[str], code: str) -> None:
    async with channel(node.socket) as link:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await images_pb2_grpc.ImagesStub(link).Export(pb.ExportRequest(images=asked)).read()
        assert caught.value.code().name == code
