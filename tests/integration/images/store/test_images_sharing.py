"""Images with common layers but different first layers, and work during the download of a layer."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from daemonkit.faults import Fault
from images.bounds.cancel import CancelToken
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.pull import build as building
from images.pull.progress import State
from images.pull.stored_layers import NewList, check_kept
from images.registry import names
from images.registry.credentials import ANONYMOUS
from images.rootfs.eager import EagerFilesystem
from images.store.catalogue import StoredImage
from images.worker import jobs
from images.worker.layer_workers import account_files, convert, convert_rest
from images.worker.planning import ImagePlanning
from images.worker.workers import LayerWorkers
from tests.support.images.image_victim import PART_BYTES, Order, Victims
from tests.support.images.images import BuiltImage, Layer, build, digest, packed, seen, write_layout
from tests.support.images.random_layers import random_layer, timeless
from tests.support.images.registry import LyingRegistry
from tests.support.images.stacks import Shelf, mounted

pytestmark = pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
NOISE = random.Random(8)
TOPMOST = "the topmost filesystem"


def _bottom(text: bytes, mode: int = 0o755) -> Layer:
    layer = Layer().dir("usr", mode=mode).file("usr/lowest", text + NOISE.randbytes(50_000))
    return layer.file("etc/passwd", text)


def _upper() -> list[bytes]:
    """Implies a directory of lower layers, and hides and links its own."""
    first = Layer().file("usr/first", NOISE.randbytes(50_000)).file("usr/gone").link("usr/again", "usr/first")
    second = Layer().file("usr/.wh.gone").file("usr/second", NOISE.randbytes(50_000)).symlink("bin", "usr")
    return [first.tar(), second.tar(), Layer().file("bin/through", NOISE.randbytes(50_000)).tar()]


UPPER = _upper()
ONE, TWO = (build([_bottom(text).tar(), *UPPER]) for text in (b"one", b"two"))
OTHER_MODE = build([_bottom(b"three", 0o700).tar(), *UPPER])


@asynccontextmanager
async def managing(directory: Path, part_bytes: int = 1) -> AsyncIterator[ImageManager]:
    manager = ImageManager(ImageSettings(directory, directory / "certs.d", part_bytes=part_bytes))
    await manager.start()
    try:
        yield manager
    finally:
        await manager.stop()


async def _pull(manager: ImageManager, image: BuiltImage) -> tuple[StoredImage, list[int]]:
    """The image, and the fetched layers."""
    with LyingRegistry("app", "1", image) as registry:
        stored = await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)
        asked = [path.rpartition("/")[2] for _, path, _ in registry.requests]
    return stored, [n for n, layer in enumerate(image.layers) if digest(layer.data) in asked]


def _inodes(image: StoredImage) -> list[int]:
    return [path.stat().st_ino for path in image.stack]


async def _sound(manager: ImageManager, image: StoredImage) -> bool:
    return not (await manager.verify(image)).faults


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Inflated layers, by their names in messages."""
    found: list[str] = []
    run = LayerWorkers.run

    def counted(workers, job, arguments, *more, **named):  # type: ignore[no-untyped-def]
        # A filesystem inflates each layer of its files; documents are not compressed.
        documents = (jobs.DOCUMENT, jobs.CONFIG, jobs.IMAGE)
        times = 0 if job in documents else len(arguments[1]) if job == jobs.WRITE else 1
        found.extend([arguments[0]] * times)
        return run(workers, job, arguments, *more, **named)

    write = ImagePlanning.write

    def counted_too(planning, arguments, *more):  # type: ignore[no-untyped-def]
        found.extend([TOPMOST] * len(arguments[0]))
        return write(planning, arguments, *more)

    monkeypatch.setattr(LayerWorkers, "run", counted)
    monkeypatch.setattr(ImagePlanning, "write", counted_too)
    yield found


async def test_new_bottom_layer_costs_one_layer(tmp_path: Path, inflated: list[str]) -> None:
    async with managing(tmp_path) as manager:
        one, _ = await _pull(manager, ONE)
        before = await manager.usage()
        inflated.clear()
        two, fetched = await _pull(manager, TWO)
        assert fetched == [0] and inflated == [TWO.layers[0].diff_id]
        assert len(two.stack) == 4 and not set(one.stack) & set(two.stack)
        assert _inodes(one)[1:] == _inodes(two)[1:] and _inodes(one)[0] != _inodes(two)[0]
        # A file with two names counts once.
        lowest, kept = two.stack[0].stat().st_blocks * 512, len(TWO.layers[0].data)
        assert (await manager.usage()).bytes - before.bytes < lowest + kept + (128 << 10)
        assert manager.store.read_file(two, "/etc/passwd", 100) == b"two"
        assert await _sound(manager, one) and await _sound(manager, two)
        await manager.remove(one.id)
        assert await _sound(manager, two)
        third, fetched = await _pull(manager, ONE)
        assert fetched == [0] and _inodes(third)[1:] == _inodes(two)[1:]
        await manager.remove(two.id)
        assert await _sound(manager, third)
        await manager.remove(third.id)
        assert manager.store.files.named() == []


async def test_filesystems_with_other_attributes_from_below_are_not_shared(tmp_path: Path) -> None:
    """usr has other attributes: all filesystems that imply usr differ."""
    async with managing(tmp_path) as manager:
        one, _ = await _pull(manager, ONE)
        other, fetched = await _pull(manager, OTHER_MODE)
        assert fetched == [0] and not set(_inodes(one)) & set(_inodes(other))
        with mounted(other.stack, tmp_path / "mounted") as root:
            assert (root / "usr").stat().st_mode & 0o777 == 0o700


async def test_several_at_once_with_other_bottom_layers_build_the_rest_once(tmp_path: Path) -> None:
    images = [build([_bottom(b"%d" % n).tar(), *UPPER]) for n in range(5)]
    async with managing(tmp_path) as manager:
        with LyingRegistry("app0", "1", images[0]) as registry:
            for number, image in enumerate(images):
                registry.add(f"app{number}", "1", image)
            wanted = [names.parse(f"{registry.netloc}/app{number}:1") for number in range(len(images))]
            pulled = await asyncio.gather(*(manager.pull(each, ANONYMOUS) for each in wanted))
            asked = [path.rpartition("/")[2] for path in registry.paths()]
        # The common part comes once, from the repository of the first request.
        shared = [digest(layer.data) for layer in images[0].layers[1:]]
        assert [asked.count(layer) for layer in shared] == [1] * len(shared)
        for stack in zip(*map(_inodes, pulled), strict=True):
            assert len(set(stack)) in (1, len(images))
        assert len({inode for stored in pulled for inode in _inodes(stored)}) == len(images) + 3
        for stored in pulled:
            assert await _sound(manager, stored)


async def test_kept_layer_is_verified_before_its_build(tmp_path: Path) -> None:
    """The list is believed; the bytes for another filesystem are not."""
    async with managing(tmp_path) as manager:
        await _pull(manager, ONE)
        kept = manager.store.files.blob_path(digest(ONE.layers[1].data))
        data = bytearray(kept.read_bytes())
        data[len(data) // 2] ^= 1
        kept.write_bytes(data)
        other, fetched = await _pull(manager, OTHER_MODE)
        assert fetched == [0, 1] and await _sound(manager, other)
        with mounted(other.stack, tmp_path / "mounted") as root:
            assert digest((root / "usr/first").read_bytes()) == digest((root / "usr/again").read_bytes())


async def test_a_kept_layer_is_verified_before_its_bytes_should_be_moving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashing many gigabytes is no standstill, for which the pull would be called off."""
    states: list[State] = []
    async with managing(tmp_path, 1 << 30) as manager:
        await _pull(manager, ONE)

        def watched(*given):  # type: ignore[no-untyped-def]
            states.extend(one.filesystem.state for one in manager.pulls.snapshots() if one.filesystem)
            check_kept(*given)

        monkeypatch.setattr(building, "check_kept", watched)
        await _pull(manager, TWO)
    assert states and set(states) == {State.WAITING}


async def test_damaged_shared_filesystem_damages_all_its_images(tmp_path: Path) -> None:
    async with managing(tmp_path) as manager:
        one, _ = await _pull(manager, ONE)
        two, _ = await _pull(manager, TWO)
        shared = one.stack[2]
        shared.chmod(0o600)
        data = bytearray(shared.read_bytes())
        data[len(data) // 2] ^= 1
        shared.write_bytes(data)
        assert not await _sound(manager, one)
        assert manager.store.get(one.id).damaged and manager.store.get(two.id).damaged
        # A third image does not get the filesystem either.
        third, _ = await _pull(manager, build([_bottom(b"3").tar(), *UPPER]))
        assert await _sound(manager, third) and _inodes(third)[2] != shared.stat().st_ino
        for image in (ONE, TWO):
            mended, _ = await _pull(manager, image)
            assert await _sound(manager, mended) and _inodes(mended)[1:] == _inodes(third)[1:]


async def test_filesystem_found_damaged_during_a_pull_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managing(tmp_path) as manager:
        one, _ = await _pull(manager, ONE)

        def found_damaged(*given):  # type: ignore[no-untyped-def]
            manager.store.mark_damaged(manager.store.stored(one)[1])
            return account_files(*given)

        monkeypatch.setattr(building, "account_files", found_damaged)
        two, _ = await _pull(manager, TWO)
        assert not set(_inodes(one)) & set(_inodes(two))
        assert manager.store.get(one.id).damaged and await _sound(manager, two)


@pytest.mark.root
async def test_image_with_a_repeated_layer_has_different_files_for_each(tmp_path: Path) -> None:
    """overlayfs takes no layer twice; the same layer may come twice in an image, with others between."""
    twice = Layer().file("opt/twice", NOISE.randbytes(50_000)).tar()
    upper = [twice, Layer().file("usr/between").tar(), twice, twice]
    lowest = _bottom(b"1").tar()
    one, longer = build([lowest, *upper]), build([lowest, *upper, twice])
    async with managing(tmp_path) as manager:
        first, _ = await _pull(manager, one)
        second, _ = await _pull(manager, longer)
        third, _ = await _pull(manager, build([_bottom(b"2").tar(), *upper, twice]))
        for number, image in enumerate((first, second, third)):
            assert len(set(_inodes(image))) == len(image.stack) == 5 + (number > 0)
            with mounted(image.stack, tmp_path / f"mounted{number}") as root:
                assert (root / "opt/twice").stat().st_size == 50_000 and (root / "usr/between").is_file()
        # Other images may have the filesystems, each in its place.
        assert second.stack[:5] == first.stack and _inodes(third)[1:] == _inodes(second)[1:]


@pytest.mark.parametrize("harm", ["gone", "short", "other"])
async def test_unusable_list_is_made_again(tmp_path: Path, harm: str, inflated: list[str]) -> None:
    async with managing(tmp_path) as manager:
        await _pull(manager, ONE)
        lists = [manager.store.files.layer_cache_path(digest(layer.data)) for layer in ONE.layers]
        sound = lists[2].read_bytes()
        if harm == "gone":
            lists[2].unlink()
        else:
            lists[2].write_bytes(sound[:-5] if harm == "short" else lists[1].read_bytes())
        inflated.clear()
        two, _ = await _pull(manager, TWO)
        assert sorted(inflated) == sorted([TWO.layers[0].diff_id, TWO.layers[2].diff_id])
        assert lists[2].read_bytes() == sound and await _sound(manager, two)


# While a layer arrives.


async def test_a_layer_of_its_own_filesystem_is_inflated_once(tmp_path: Path, inflated: list[str]) -> None:
    """Unless a name leads through a link of a lower layer, as in the topmost layer here."""
    async with managing(tmp_path) as manager:
        image, _ = await _pull(manager, ONE)
        again = [subject for subject in inflated if not subject.startswith("sha256:")]
        assert sorted(set(inflated) - set(again)) == sorted(layer.diff_id for layer in ONE.layers)
        assert again == [TOPMOST]
        assert len(inflated) == len(ONE.layers) + 1
        assert await _sound(manager, image)
        with mounted(image.stack, tmp_path / "mounted") as root:
            assert (root / "usr/through").is_file() and not (root / "usr/gone").exists()
        assert list(manager.store.files.ingest.iterdir()) == []


async def test_unfit_early_filesystem_is_removed_before_the_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or both would be on the disk at once."""
    beside: list[list[Path]] = []

    def looked(blobs, plan, out, *given):  # type: ignore[no-untyped-def]
        beside.append([path for path in out.parent.iterdir() if path.stem == out.stem])
        return convert(blobs, plan, out, *given)

    monkeypatch.setattr(building, "convert", looked)
    async with managing(tmp_path) as manager:
        await _pull(manager, ONE)
    assert beside == [[]]


async def test_filesystem_without_a_slot_is_built_after_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managing(tmp_path / "early") as manager:
        early, _ = await _pull(manager, ONE)
        digests = [row.digest for row in manager.store.stored(early)[1]]
    monkeypatch.setattr(building, "SLOTS", 0)
    async with managing(tmp_path / "late") as manager:
        late, _ = await _pull(manager, ONE)
        assert [row.digest for row in manager.store.stored(late)[1]] == digests


async def test_cancelled_pull_leaves_none_of_its_filesystems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lowest layer never comes; the filesystems over it have been begun, and wait."""
    release, began = threading.Event(), threading.Semaphore(0)
    keep = NewList.keep

    def counted(new: NewList) -> None:
        keep(new)
        began.release()

    monkeypatch.setattr(NewList, "keep", counted)
    async with managing(tmp_path) as manager:
        with LyingRegistry("app", "1", ONE) as registry:
            lowest = f"/v2/app/blobs/{digest(ONE.layers[0].data)}"
            registry.answers[lowest] = lambda handler: None if release.wait(60) else None
            pull = asyncio.create_task(manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS))
            for _ in UPPER:
                assert await asyncio.to_thread(began.acquire, timeout=60)
            assert [path for path in manager.store.files.ingest.iterdir() if path.stat().st_mode]
            pull.cancel()
            with pytest.raises((asyncio.CancelledError, Fault)):
                await pull
            release.set()
            await manager.pulls.drain()
        assert list(manager.store.files.ingest.iterdir()) == []
        image, _ = await _pull(manager, ONE)
        assert await _sound(manager, image)


def test_files_of_unbuilt_plans_are_closed_with_the_planning(tmp_path: Path) -> None:
    workers = LayerWorkers(ImageSettings(tmp_path).limits)
    layer = packed(Layer().file("f", b"f").tar(), "")
    with closing(workers):
        shelf = Shelf(tmp_path, workers)
        with closing(shelf.planning([])) as planning:
            shelf.apply(planning, layer)
            plan = planning.finished(shelf.plan(planning, ("1", ()), [layer.diff_id]))
            assert not plan.stored.closed
        assert plan.stored.closed and plan.tree.closed


@pytest.mark.parametrize("seed", range(30))
def test_early_begun_filesystem_equals_a_filesystem_built_afterwards(tmp_path: Path, seed: int) -> None:
    """Or the filesystem does not fit, and is useless."""
    rng, files = random.Random(seed), [""]
    layers = [packed(random_layer(rng, files).tar(), "") for _ in range(3)]
    diff_ids = [layer.diff_id for layer in layers]
    settings = ImageSettings(tmp_path)
    workers = LayerWorkers(settings.limits)
    begun = EagerFilesystem(tmp_path / "early", 0, settings, workers)
    with closing(workers), closing(begun):
        shelf = Shelf(tmp_path, workers)
        with closing(shelf.planning([])) as planning:
            try:
                for number, layer in enumerate(layers):
                    shelf.apply(planning, layer, begun if number == 2 else None)
                    if number == 1:
                        shelf.plan(planning, ("1", ()), diff_ids[:2]).close()
            except Fault:
                return
            plan, token = shelf.plan(planning, ("2", ()), diff_ids), CancelToken()
            blobs = dict(enumerate(shelf.blobs))
            built = convert(blobs, plan, tmp_path / "late", settings, workers, token, lambda _: None)
            if begun.fits(plan.content):
                assert convert_rest(begun, blobs, plan, workers, token, lambda _: None) == built
                assert (tmp_path / "early").read_bytes() == (tmp_path / "late").read_bytes()


# -- results


@pytest.mark.root
@pytest.mark.skipif(shutil.which("umoci") is None, reason="umoci is not installed")
@pytest.mark.parametrize("seed", range(15))
async def test_random_images_with_common_layers_give_the_reference_trees(tmp_path: Path, seed: int) -> None:
    """All in one store: each image may take layers of earlier images."""
    rng, files = random.Random(2000 + seed), [""]
    upper = [random_layer(rng, files).tar() for _ in range(3)]
    async with managing(tmp_path / "store") as manager:
        for number in range(4):
            image = build([random_layer(rng, files).tar(), *upper])
            layout = write_layout(tmp_path / f"layout{number}", image)
            command = ["umoci", "unpack", "--image", f"{layout}:latest", str(tmp_path / f"bundle{number}")]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=120)
            try:
                ((ours, _),) = await manager.import_layout(layout, names.parse(f"app:{number}"))
            except Fault:
                assert done.returncode
                continue
            assert not done.returncode
            reference = seen(tmp_path / f"bundle{number}/rootfs")
            with mounted(ours.stack, tmp_path / f"mounted{number}") as root:
                assert timeless(seen(root)) == timeless(reference)


async def test_kill_during_the_use_of_shared_layers_leaves_a_sound_store(tmp_path: Path) -> None:
    steps = [f"image-pull.filesystem-{step}:{n}" for step in ("built", "named", "recorded") for n in (1, 4)]
    state = tmp_path / "state"
    for number, step in enumerate(steps):
        async with managing(state, PART_BYTES) as manager:
            one, _ = await _pull(manager, ONE)
        two = build([_bottom(b"%d" % number).tar(), *UPPER])
        with Victims() as victims, LyingRegistry("app", "1", two) as registry:
            order = Order(str(state), f"{registry.netloc}/app:1", kill_at=step)
            assert (await asyncio.to_thread(victims.run, order)).killed
        async with managing(state, PART_BYTES) as manager:
            files = {path for path in manager.store.files.named() if path.suffix == ".squashfs"}
            assert files == set(one.stack) and list(manager.store.files.ingest.iterdir()) == []
            second, _ = await _pull(manager, two)
            assert _inodes(second)[1:] == _inodes(one)[1:]
            assert await _sound(manager, one) and await _sound(manager, second)
            await manager.remove(one.id)
            await manager.remove(second.id)
            assert manager.store.files.named() == []
