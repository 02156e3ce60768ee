"""Images with the same first layers: shared layers, and work done once."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from daemonkit.faults import Fault
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.registry import names
from images.registry.credentials import ANONYMOUS
from images.store.catalogue import StoredImage
from images.worker.layer_workers import convert, convert_rest
from tests.support.images.images import BuiltImage, Layer, build, digest, packed
from tests.support.images.registry import LyingRegistry, content

pytestmark = pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
NOISE = random.Random(7)
SHARED = [packed(Layer().file(f"shared/{n}", NOISE.randbytes(50_000)).tar()) for n in range(3)]


def _image(top: Layer) -> BuiltImage:
    return build([*SHARED, packed(top.tar())])


@asynccontextmanager
async def managing(directory: Path, part_bytes: int = 1) -> AsyncIterator[ImageManager]:
    manager = ImageManager(ImageSettings(directory, directory / "certs.d", part_bytes=part_bytes))
    await manager.start()
    try:
        yield manager
    finally:
        await manager.stop()


async def _pull(manager: ImageManager, registry: LyingRegistry) -> StoredImage:
    return await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)


async def _sound(manager: ImageManager, image: StoredImage) -> bool:
    return not (await manager.verify(image)).faults


def _fetched(registry: LyingRegistry, image: BuiltImage) -> list[int]:
    """The layers by their places in the image."""
    asked = [path.rpartition("/")[2] for _, path, _ in registry.requests]
    return [n for n, layer in enumerate(image.layers) if digest(layer.data) in asked]


async def test_second_image_fetches_and_builds_its_own_layers_alone(tmp_path: Path) -> None:
    one, two = _image(Layer().file("etc/passwd", b"one")), _image(Layer().file("shared/0", b"two"))
    async with managing(tmp_path) as manager:
        with LyingRegistry("app", "1", one) as registry:
            first = await _pull(manager, registry)
        times = [path.stat().st_mtime_ns for path in first.stack]
        with LyingRegistry("app", "1", two) as registry:
            second = await _pull(manager, registry)
            assert _fetched(registry, two) == [3]
        assert len(first.stack) == len(second.stack) == 4
        assert first.stack[:3] == second.stack[:3] and first.stack[3] != second.stack[3]
        assert [path.stat().st_mtime_ns for path in first.stack] == times
        assert manager.store.read_file(first, "/etc/passwd", 100) == b"one"
        assert manager.store.read_file(second, "/etc/passwd", 100) is None
        assert await _sound(manager, first) and await _sound(manager, second)
        await manager.remove(first.id)
        assert await _sound(manager, second)
        await manager.remove(second.id)
        assert manager.store.files.named() == []


async def test_concurrent_pulls_build_shared_layers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order of the waits."""
    built: list[str] = []
    from images.pull import build as building

    def counted(blobs, plan, out, *more):  # type: ignore[no-untyped-def]
        built.append(out.name.partition(".")[0])
        return convert(blobs, plan, out, *more)

    def counted_rest(begun, *more):  # type: ignore[no-untyped-def]
        built.append(begun.out.name.partition(".")[0])
        return convert_rest(begun, *more)

    monkeypatch.setattr(building, "convert", counted)
    monkeypatch.setattr(building, "convert_rest", counted_rest)
    images = [_image(Layer().file(f"own/{n}", b"x")) for n in range(6)]
    async with managing(tmp_path) as manager:
        with LyingRegistry("app0", "1", images[0]) as registry:
            for number, image in enumerate(images):
                registry.add(f"app{number}", "1", image)
            wanted = [names.parse(f"{registry.netloc}/app{number}:1") for number in range(len(images))]
            pulled = await asyncio.gather(*(manager.pull(each, ANONYMOUS) for each in wanted))
        assert sorted(built) == sorted({path.stem for image in pulled for path in image.stack})
        assert len(built) == 3 + 6


@pytest.mark.parametrize("harm", ["gone", "short", "changed", "other"])
async def test_unusable_tree_cache_is_made_again(tmp_path: Path, harm: str) -> None:
    one, two = _image(Layer().file("a", b"1")), _image(Layer().link("b", "shared/1").file(".wh.shared"))
    async with managing(tmp_path) as manager:
        with LyingRegistry("app", "1", one) as registry:
            first = await _pull(manager, registry)
        trees = [manager.store.files.tree_cache_path(f"sha256:{path.stem}") for path in first.stack]
        sound = trees[1].read_bytes()
        harmed = {
            "short": sound[:-5],
            "changed": sound[:-9] + b"!" + sound[-8:],
            "other": trees[0].read_bytes(),
        }
        if harm == "gone":
            trees[1].unlink()
        else:
            trees[1].write_bytes(harmed[harm])
        with LyingRegistry("app", "1", two) as registry:
            image = await _pull(manager, registry)
            assert _fetched(registry, two) == [3]
        assert trees[1].read_bytes() == sound
        assert await _sound(manager, image)


async def test_layers_with_false_ids_are_read(tmp_path: Path) -> None:
    """A manifest may name any layers beside the plain digests of a known image."""
    image = _image(Layer().file("a", b"1"))
    liar = replace(SHARED[1], data=packed(Layer().file("evil", NOISE.randbytes(9000)).tar()).data)
    lying = build([SHARED[0], liar, SHARED[2], packed(Layer().link("b", "shared/1").tar())])
    async with managing(tmp_path) as manager:
        with LyingRegistry("app", "1", image) as registry:
            await _pull(manager, registry)
        before = set(manager.store.files.named())
        with LyingRegistry("app", "1", lying) as registry, pytest.raises(Fault, match="digest"):
            await _pull(manager, registry)
        assert set(manager.store.files.named()) == before


async def test_image_with_another_cut_stays_unchanged(tmp_path: Path) -> None:
    image = _image(Layer().file("a", b"1"))
    with LyingRegistry("app", "1", image) as registry:
        async with managing(tmp_path, 1 << 30) as manager:
            (before,) = (await _pull(manager, registry)).stack
        async with managing(tmp_path) as manager:
            again = await _pull(manager, registry)
            assert again.stack == (before,)
            assert [path for path in manager.store.files.named() if path.suffix == ".squashfs"] == [before]


async def test_failed_layer_fails_the_pull_and_leaves_verified_layers(tmp_path: Path) -> None:
    image = _image(Layer().file("a", b"1"))
    bad = image.layers[2]
    with LyingRegistry("app", "1", image) as registry:
        registry.answers[f"/v2/app/blobs/{digest(bad.data)}"] = content(bad.data[:-1] + b"!")
        async with managing(tmp_path) as manager:
            with pytest.raises(Fault, match="another digest|digest"):
                await _pull(manager, registry)
            kept = {path.name for path in manager.store.files.named()}
            assert list(manager.store.files.ingest.iterdir()) == []
            # The verified layers, for the next try.
            sound = {digest(layer.data)[7:] for layer in image.layers if layer is not bad}
            assert kept <= sound
            registry.requests.clear()
            registry.answers[f"/v2/app/blobs/{digest(bad.data)}"] = content(bad.data)
            await _pull(manager, registry)
            asked = {image.layers[number] for number in _fetched(registry, image)}
            assert {digest(layer.data)[7:] for layer in image.layers if layer not in asked} == kept


async def test_files_of_lower_filesystems_under_new_names(tmp_path: Path) -> None:
    """A linked file is in both filesystems; an account file behind a symlink is read at its place."""
    layers = [
        Layer().file("lib/passwd", b"in the lowest").file("etc/passwd", b"hidden"),
        Layer().file("x", b"x"),
        Layer().symlink("etc/passwd", "../lib/passwd").link("linked", "x"),
    ]
    image = build([layer.tar() for layer in layers])
    with LyingRegistry("app", "1", image) as registry:
        async with managing(tmp_path) as manager:
            pulled = await _pull(manager, registry)
            assert len(pulled.stack) == 3
            assert manager.store.read_file(pulled, "/etc/passwd", 100) == b"in the lowest"
