"""SIGKILL at any moment of a pull or a removal: the next start finds nothing half-done, the pull succeeds."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.registry import names
from images.registry.credentials import ANONYMOUS
from tests.support.images.image_manager import running
from tests.support.images.image_victim import PART_BYTES, ROOT, Order, Victims
from tests.support.images.images import Blob, Layer, build, digest, packed
from tests.support.images.registry import LyingRegistry
from tests.support.session.checkpoints import killed_at, one_of_each_verb

pytestmark = pytest.mark.slow

NOISE = random.Random(6)
LAYERS = [packed(Layer().file(f"f{n}", NOISE.randbytes(300_000 * (n + 1))).tar()) for n in range(4)]
IMAGE = build(LAYERS)

PULL_STEPS = (
    "image-pull.resolved",
    *(f"image-pull.layer-fetched:{n}" for n in range(1, 5)),
    *(f"image-pull.layer-named:{n}" for n in range(1, 5)),
    *(f"image-pull.filesystem-{step}:{n}" for step in ("built", "named", "recorded") for n in (1, 3, 4)),
    "image-pull.recorded",
)
REMOVE_STEPS = (
    "image-start.cleared",
    "image-remove.unnamed",
    "image-remove.forgotten",
    "image-remove.filesystem-forgotten",
    *(f"image-remove.file-removed:{n}" for n in (1, 2, 5, 11, 12)),
)
REPAIR_STEPS = (
    "image-verify.marked",
    "image-repair.layer-removed:1",
    "image-repair.layer-removed:2",
    "image-pull.layer-fetched",
    "image-pull.layer-named",
    *(f"image-pull.filesystem-{step}:{n}" for step in ("built", "named", "recorded") for n in (1, 2)),
    "image-pull.recorded",
)
TAG_STEPS = ("image-tag.recorded", "image-untag.recorded")
FEW, MANY = 10, 50


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    with Victims() as running:
        yield running


def test_every_step_of_images_is_here() -> None:
    command = [sys.executable, "-m", "cri", "--list-checkpoints"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    mine = {step.partition(":")[0] for step in (*PULL_STEPS, *REMOVE_STEPS, *REPAIR_STEPS, *TAG_STEPS)}
    assert {step for step in listed if step.startswith("image-")} == mine


async def _next_start(state: Path, name: str) -> None:
    """Start again: nothing unneeded is left, and a pull succeeds, is sound, and can be removed."""
    manager = ImageManager(ImageSettings(state, state / "certs.d", part_bytes=PART_BYTES))
    await manager.start()
    # As the daemon does when it has told the images of its containers.
    manager.store.collect()
    try:
        files = manager.store.files
        assert list(files.ingest.iterdir()) == []
        found = {path.name for path in files.named()}
        images, layers = manager.store.images(), {digest(layer.data)[7:] for layer in LAYERS}
        lists = {f"{layer}.entries" for layer in layers}
        built = {name for image in images for path in image.stack for name in (path.name, path.stem)}
        # All of the image, or none of it but verified layers for the next try.
        assert found == layers | lists | built if images else found <= layers | lists
        pulled = await manager.pull(names.parse(name), ANONYMOUS)
        assert (pulled.id, len(pulled.stack)) == (IMAGE.id, len(LAYERS))
        verdict = await manager.verify(pulled)
        assert verdict.faults == ()
        await manager.remove(name)
        assert files.named() == []
        assert list(files.ingest.iterdir()) == []
    finally:
        await manager.stop()


@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=[pytest.mark.further, pytest.mark.timeout(900)])]
)
async def test_many_kills_of_pulls_and_removals_leave_no_remains(
    tmp_path: Path, victims: Victims, every: bool
) -> None:
    """At steps, and at random moments; a single store for all kills: leaks would add up."""
    state = tmp_path / "state"
    with LyingRegistry("app", "1", IMAGE) as registry:
        name = f"{registry.netloc}/app:1"
        run = victims.run
        takes = (await asyncio.to_thread(run, Order(str(state), name, remove=True))).seconds
        choose = list if every else one_of_each_verb
        orders = [Order(str(state), name, kill_at=step) for step in choose(PULL_STEPS)]
        orders += [Order(str(state), name, remove=True, kill_at=step) for step in choose(REMOVE_STEPS)]
        while len(orders) < (MANY if every else FEW):
            orders.append(Order(str(state), name, remove=True, after=random.uniform(0, takes)))
        for order in orders:
            outcome = await asyncio.to_thread(run, order)
            assert outcome.killed or order.after >= 0, order
            await _next_start(state, name)
        # Only the index itself takes space.
        left = {path.name.partition("-")[0] for path in state.rglob("*") if path.is_file()}
        assert left <= {"images.db", "lock"}


@pytest.mark.parametrize(("step", "tagged"), [(TAG_STEPS[0], True), (TAG_STEPS[1], False)])
async def test_killed_while_a_name_is_given_or_taken(
    tmp_path: Path, victims: Victims, step: str, tagged: bool
) -> None:
    """What was recorded holds, and nothing else of the image is touched."""
    state = tmp_path / "state"
    with LyingRegistry("app", "1", IMAGE) as registry:
        name = f"{registry.netloc}/app:1"
        order = Order(str(state), name, tag="example.com/second:1", kill_at=step)
        assert (await asyncio.to_thread(victims.run, order)).killed
        manager = ImageManager(ImageSettings(state, state / "certs.d", part_bytes=PART_BYTES))
        await manager.start()
        tags = manager.store.resolve(name).repo_tags
        await manager.stop()
        assert tags == (name, "example.com/second:1") if tagged else tags == (name,)
        await _next_start(state, name)


async def test_killed_again_and_again_without_a_pull_between(tmp_path: Path, victims: Victims) -> None:
    """A single start clears the remains of several killed runs."""
    state = tmp_path / "state"
    with LyingRegistry("app", "1", IMAGE) as registry:
        name = f"{registry.netloc}/app:1"
        for step in ("image-pull.layer-named:2", "image-pull.filesystem-built", "image-start.cleared"):
            assert (await asyncio.to_thread(victims.run, Order(str(state), name, kill_at=step))).killed
        await _next_start(state, name)


@killed_at(REPAIR_STEPS)
async def test_killed_during_a_repair(tmp_path: Path, victims: Victims, step: str) -> None:
    """The image is there at the next start, sound or not, and the next repair completes the image."""
    state = tmp_path / "state"
    # Of another form than the victim's: a rebuilt filesystem differs in size from the index.
    settings = ImageSettings(state, state / "certs.d", part_bytes=PART_BYTES, compression="gzip")
    with LyingRegistry("app", "1", IMAGE) as registry:
        name = f"{registry.netloc}/app:1"
        async with running(settings) as manager:
            image = await manager.pull(names.parse(name), ANONYMOUS)
            for path in (*image.stack[1:3], *(_blob(manager, layer) for layer in LAYERS[:2])):
                _harm(path)
        assert (
            await asyncio.to_thread(victims.run, Order(str(state), name, repair=True, kill_at=step))
        ).killed
        async with running(settings) as manager:
            assert list(manager.store.files.ingest.iterdir()) == []
            image = manager.store.resolve(name)
            found = await manager.verify(image)
            assert manager.store.get(image.id).damaged == bool(found.damage.filesystems)
            _, now = await manager.repair(image, found, ANONYMOUS)
            assert now.faults == ()
            await manager.remove(name)
            assert manager.store.files.named() == []


def _blob(manager: ImageManager, layer: Blob) -> Path:
    return manager.store.files.blob_path(digest(layer.data))


def _harm(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
