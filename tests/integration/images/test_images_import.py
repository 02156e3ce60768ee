"""Images from layouts and archives on this host."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemonkit.faults import Fault, Invalid, Missing
from images.bounds.limits import ImageLimits
from images.image_errors import Oversized
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.rpc.operator import OperatorService
from tests.support.images.image_manager import running
from tests.support.images.images import BuiltImage, Layer, build, digest, index_of, packed, write_layout
from xenpod_proto.images.v1 import images_pb2

IMAGE = build(
    [Layer().dir("etc").file("etc/passwd", b"low").tar(), Layer().file("etc/passwd", b"high").tar()]
)


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[ImageManager]:
    async with running(ImageSettings(tmp_path / "state")) as made:
        yield made


async def _import(manager: ImageManager, path: Path, name: str = "") -> list[images_pb2.ImportedImage]:
    request = images_pb2.ImportRequest(path=str(path), name=name)
    return list((await OperatorService(manager).Import(request, None)).images)  # type: ignore[arg-type]


def _archive(directory: Path, path: Path, form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        archive.add(directory, ".")
    return path


def _packed(path: Path, how: str) -> Path:
    """The same archive, compressed."""
    out = path.with_name(f"{path.name}.{how}")
    out.write_bytes(packed(path.read_bytes(), how).data)
    return out


@pytest.mark.parametrize("how", ["directory", "archive", "gzip", "zstd"])
async def test_layout_of_each_packing_is_imported_under_its_name(
    manager: ImageManager, tmp_path: Path, how: str
) -> None:
    path = write_layout(tmp_path / "layout", IMAGE, "registry.example/team/app:v1")
    if how != "directory":
        path = _archive(path, tmp_path / "layout.tar")
    if how in ("gzip", "zstd"):
        path = _packed(path, how)
    (imported,) = await _import(manager, path)
    assert imported.name == "registry.example/team/app:v1"
    assert imported.id == IMAGE.id
    assert imported.manifest_digest == digest(IMAGE.manifest)
    image = manager.store.resolve("registry.example/team/app:v1")
    assert image.repo_digests == (f"registry.example/team/app@{digest(IMAGE.manifest)}",)
    assert manager.store.read_file(image, "/etc/passwd", 100) == b"high"
    assert list(manager.store.files.ingest.iterdir()) == []


async def test_a_given_name_wins_and_none_is_fine(manager: ImageManager, tmp_path: Path) -> None:
    path = write_layout(tmp_path / "layout", IMAGE, "latest")
    (unnamed,) = await _import(manager, path)
    assert (unnamed.name, manager.store.resolve(IMAGE.id).repo_tags) == ("", ())
    (named,) = await _import(manager, path, "given")
    assert named.name == "docker.io/library/given:latest"
    assert manager.store.resolve("given").id == IMAGE.id


async def test_import_of_several_images_takes_the_fitting_images(
    manager: ImageManager, tmp_path: Path
) -> None:
    root = write_layout(tmp_path / "layout", IMAGE)
    foreign = IMAGE.descriptor | {"platform": {"os": "linux", "architecture": "s390x"}}
    nested = index_of([foreign, IMAGE.descriptor])
    (root / "blobs/sha256" / digest(nested)[7:]).write_bytes(nested)
    index = {
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": digest(nested),
        "size": len(nested),
    }
    named = {"annotations": {"io.containerd.image.name": "docker.io/library/nested:1"}}
    (root / "index.json").write_bytes(index_of([foreign, index | named]))
    (imported,) = await _import(manager, root)
    assert imported.name == "docker.io/library/nested:1"
    image = manager.store.resolve("nested:1")
    assert image.repo_digests == (f"docker.io/library/nested@{digest(nested)}",)


async def test_archives_written_by_skopeo_are_imported(manager: ImageManager, tmp_path: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    layout = write_layout(tmp_path / "layout", IMAGE)
    for kind, target in (("oci-archive", "oci.tar:app:1"), ("docker-archive", "docker.tar:app:2")):
        file = tmp_path / target.partition(":")[0]
        command = [
            "skopeo",
            "copy",
            "--insecure-policy",
            f"oci:{layout}:latest",
            f"{kind}:{tmp_path}/{target}",
        ]
        _run(*command)
        (imported,) = await _import(manager, file)
        image = manager.store.resolve(imported.id)
        assert manager.store.read_file(image, "/etc/passwd", 100) == b"high"
    assert manager.store.resolve("docker.io/library/app:2").id == imported.id


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _docker_archive(path: Path, image: BuiltImage, **entry: object) -> Path:
    """The older form: layers named by directories, with a link from a layer to another."""
    with tarfile.open(path, "w") as archive:

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))

        add("one/layer.tar", image.layers[0].data)
        link = tarfile.TarInfo("two/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../one/layer.tar"
        archive.addfile(link)
        add("config.json", image.config)
        listed = {
            "Config": "config.json",
            "RepoTags": ["a:1", "b:2"],
            "Layers": ["one/layer.tar", "two/layer.tar"],
        }
        add("manifest.json", json.dumps([listed | entry]).encode())
    return path


async def test_an_old_docker_archive(manager: ImageManager, tmp_path: Path) -> None:
    layer = packed(Layer().dir("etc").file("etc/passwd", b"docker").tar(), "")
    image = build([layer, layer])
    imported = await _import(manager, _docker_archive(tmp_path / "save.tar", image))
    assert [one.name for one in imported] == ["docker.io/library/a:1", "docker.io/library/b:2"]
    assert manager.store.resolve("b:2") == manager.store.resolve("a:1")


@pytest.mark.parametrize(
    "entry",
    [{"Layers": ["../../etc/passwd"]}, {"Config": "/etc/passwd"}, {"Layers": [1]}, {"RepoTags": ["A B"]}],
)
async def test_lying_docker_archive_is_refused(
    manager: ImageManager, tmp_path: Path, entry: dict[str, object]
) -> None:
    layer = packed(Layer().file("f").tar(), "")
    with pytest.raises(Fault):
        await _import(manager, _docker_archive(tmp_path / "save.tar", build([layer, layer]), **entry))
    assert manager.store.images() == []


async def test_symlinked_or_corrupt_blob_is_refused(manager: ImageManager, tmp_path: Path) -> None:
    root = write_layout(tmp_path / "layout", IMAGE)
    blob = root / "blobs/sha256" / digest(IMAGE.layers[0].data)[7:]
    elsewhere = tmp_path / "elsewhere"
    blob.rename(elsewhere)
    blob.symlink_to(elsewhere)
    with pytest.raises(Missing):
        await _import(manager, root)
    blob.unlink()
    blob.write_bytes(IMAGE.layers[0].data[:-1] + b"!")
    with pytest.raises(Fault, match="digest"):
        await _import(manager, root)
    assert list(manager.store.files.ingest.iterdir()) == []


async def test_an_old_docker_archive_with_gzip(manager: ImageManager, tmp_path: Path) -> None:
    """As `docker save | gzip` writes the archive, in two members."""
    layer = packed(Layer().file("zeros", bytes(3 << 20)).tar(), "")
    data = _docker_archive(tmp_path / "save.tar", build([layer, layer])).read_bytes()
    path = tmp_path / "save.tar.gz"
    path.write_bytes(gzip.compress(data[:5000]) + gzip.compress(data[5000:]))
    assert [one.name for one in await _import(manager, path)] == [
        "docker.io/library/a:1",
        "docker.io/library/b:2",
    ]
    assert (await manager.verify(manager.store.resolve("a:1"))).faults == ()


@pytest.mark.parametrize("how", ["gzip", "zstd"])
async def test_broken_compressed_archive_is_refused(manager: ImageManager, tmp_path: Path, how: str) -> None:
    whole = _packed(_archive(write_layout(tmp_path / "l", IMAGE), tmp_path / "whole.tar"), how).read_bytes()
    odd = {
        "cut": whole[: len(whole) // 2],
        "damaged": whole[:40] + bytes(40) + whole[80:],
        "no tar": packed(b"not a tar" * 1000, how).data,
        "twice": packed(whole, how).data,
        "empty": packed(b"", how).data,
        "magic": whole[:4],
    }
    for name, data in odd.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(Fault):
            await _import(manager, tmp_path / name)
        assert list(manager.store.files.ingest.iterdir()) == [], name
    assert manager.store.images() == []


@pytest.mark.parametrize(("magic", "name"), [(b"\xfd7zXZ\0", "xz"), (b"BZh9", "bzip2")])
async def test_other_compressions_are_named(
    manager: ImageManager, tmp_path: Path, magic: bytes, name: str
) -> None:
    (tmp_path / "odd").write_bytes(magic + bytes(5000))
    with pytest.raises(Invalid, match=f"compressed with {name}.*only gzip and zstd"):
        await _import(manager, tmp_path / "odd")


@pytest.mark.parametrize("how", ["gzip", "zstd"])
async def test_import_of_a_bomb_ends_at_the_limit(tmp_path: Path, how: str) -> None:
    """Import ends at the limit of the inflated size, and zeros take no space before."""
    most = 64 << 20
    archive = tarfile.TarInfo("zeros")
    archive.size = 4 * most
    path = tmp_path / "bomb"
    path.write_bytes(packed(archive.tobuf() + bytes(4 * most), how).data)
    settings = ImageSettings(tmp_path / "state", limits=ImageLimits(unpacked_bytes=most))
    async with running(settings) as manager:
        peak, usage = 0, manager.store.files.usage
        importing = asyncio.create_task(_import(manager, path))
        while not importing.done():
            peak = max(peak, (await asyncio.to_thread(usage)).bytes)
        with pytest.raises(Oversized, match=r"more than 67108864 bytes.*images\.limits\.unpacked_bytes"):
            await importing
        assert peak < most // 8
        assert list(manager.store.files.ingest.iterdir()) == []


async def test_cancelled_import_leaves_nothing(manager: ImageManager, tmp_path: Path) -> None:
    archive = tarfile.TarInfo("noise")
    archive.size = 256 << 20
    noise = os.urandom(1 << 20)
    path = tmp_path / "big.gz"
    path.write_bytes(gzip.compress(archive.tobuf() + noise * 256, 0))
    importing = asyncio.create_task(_import(manager, path))
    async with asyncio.timeout(60):
        while not list(manager.store.files.ingest.iterdir()):
            await asyncio.to_thread(manager.store.files.usage)
    importing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await importing
    await manager.pulls.drain()
    assert list(manager.store.files.ingest.iterdir()) == []


async def test_file_without_an_image_is_not_imported(manager: ImageManager, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_bytes(b"not a tar" * 200)
    (tmp_path / "cut.tar").write_bytes(
        _archive(write_layout(tmp_path / "l", IMAGE), tmp_path / "whole.tar").read_bytes()[:3000]
    )
    for path in ("empty", "text", "cut.tar"):
        with pytest.raises(Fault):
            await _import(manager, tmp_path / path)
    with pytest.raises(Missing):
        await _import(manager, tmp_path / "nothing")
    with pytest.raises(Invalid):
        await _import(manager, Path("relative"))
    with pytest.raises(Invalid):
        await _import(manager, write_layout(tmp_path / "l2", IMAGE), f"a@{IMAGE.id}")
