"""Kernels from images: their files, their holders, and their remains."""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
import re
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cri.container.stored_images import StoredImages
from daemonkit.config import Bytes
from daemonkit.faults import Broken, Exhausted, Fault, Refused
from images.image_settings import ImageSettings, KernelSettings
from images.kernels.metadata import Metadata
from images.manager import ImageManager
from images.pull.repair import Outcome
from images.registry.credentials import ANONYMOUS
from tests.support.images.image_victim import ROOT, Order, Victims
from tests.support.images.images import BuiltImage, Layer, build, write_layout
from tests.support.images.kernel_images import kernel_files, kernel_image, layer
from tests.support.images.registry import LyingRegistry
from tests.support.session.checkpoints import killed_at

NAME = "registry.example/kernels/zone:1"
STEPS = ("kernel-take.begun", "kernel-take.layer-read", "kernel-take.synced", "kernel-take.named")
SMALL = KernelSettings(image_bytes=Bytes(100_000), addons_bytes=Bytes(50_000), initramfs_bytes=Bytes(10_000))


def _settings(folder: Path) -> ImageSettings:
    return ImageSettings(folder / "state", folder / "certs.d", kernels=SMALL)


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[ImageManager]:
    made = ImageManager(_settings(tmp_path))
    await made.start()
    yield made
    await made.stop()


async def _put(manager: ImageManager, image: BuiltImage, folder: Path, name: str = NAME) -> str:
    path = write_layout(folder / f"layout-{image.id[7:19]}", image, name)
    await manager.import_layout(path, None)
    return image.id


def _folders(manager: ImageManager) -> list[Path]:
    return list((manager.store.files.root / "kernels").iterdir())


async def _refused(manager: ImageManager, image: BuiltImage, folder: Path) -> Fault:
    image_id = await _put(manager, image, folder)
    manager.store.hold(image_id, "zone:p")
    with pytest.raises(Fault) as caught:
        await StoredImages(manager).kernel(image_id)
    assert _folders(manager) == []
    assert list(manager.store.files.ingest.iterdir()) == []
    (told,) = (await manager.kernels.listed()) or (None,)
    if told is not None:
        assert told.fault and not told.taken_out
    return caught.value


async def test_kernel_is_taken_out_once_and_kept_for_its_zones(manager: ImageManager, tmp_path: Path) -> None:
    image_id = await _put(manager, kernel_image(initramfs=b"0707" * 1000), tmp_path)
    (before,) = await manager.kernels.listed()
    assert (before.metadata.version, before.metadata.flavor, before.taken_out) == ("6.12.4", "zone", False)
    assert (before.sizes["image"], before.sizes["initramfs"], before.fault) == (55_000, 4000, "")
    manager.store.hold(image_id, "zone:p")
    files = await StoredImages(manager).kernel(image_id)
    again = await asyncio.gather(*(StoredImages(manager).kernel(image_id) for _ in range(4)))
    assert all(one == files for one in again)
    assert files.name == NAME
    wanted = kernel_files(initramfs=b"0707" * 1000)
    assert Path(files.image_path).read_bytes() == wanted["image"]
    assert Path(files.addons_path).read_bytes() == wanted["addons.squashfs"]
    assert Path(files.initramfs_path).read_bytes() == wanted["initramfs"]
    assert Path(files.image_path).stat().st_mode & 0o777 == 0o400
    assert (await manager.kernels.listed())[0].taken_out
    await manager.remove(NAME)
    assert Path(files.addons_path).is_file()
    manager.store.release("zone:p")
    assert _folders(manager) == manager.store.files.named() == []
    assert (await manager.kernels.listed()) == []


async def test_a_damaged_file_is_taken_out_again(manager: ImageManager, tmp_path: Path) -> None:
    """A zone that booted from the old kernel keeps the open files."""
    image_id = await _put(manager, kernel_image(), tmp_path)
    manager.store.hold(image_id, "zone:p")
    path = Path((await StoredImages(manager).kernel(image_id)).addons_path)
    wanted = path.read_bytes()
    with path.open("rb") as opened:
        path.chmod(0o600)
        path.write_bytes(wanted[:-1] + bytes([wanted[-1] ^ 1]))
        image = manager.store.get(image_id)
        found = await manager.verify(image)
        assert found.faults == ("the kernel's addons.squashfs has another digest",)
        repairs, now = await manager.repair(image, found, ANONYMOUS)
        assert [one.outcome for one in repairs] == [Outcome.REBUILT] and now.faults == ()
        assert path.read_bytes() == wanted != opened.read()
    # The kernel needs its layers.
    for layer_file in manager.store.files.layers():
        layer_file.unlink()
    path.unlink()
    repairs, _ = await manager.repair(image, await manager.verify(image), ANONYMOUS)
    assert {one.outcome for one in repairs} == {Outcome.FAILED}
    assert repairs[-1].object == "the kernel's files" and "layer" in repairs[-1].detail


async def test_layers_are_merged_as_in_any_image(manager: ImageManager, tmp_path: Path) -> None:
    """A later layer's kernel counts, a whiteout takes addons away, a hard link is its file."""
    low = layer(kernel_files(image=b"old")).file("boot/vmlinuz", b"new kernel")
    high = Layer().link("kernel/image", "boot/vmlinuz").file("kernel/.wh.addons.squashfs")
    image_id = await _put(manager, build([low.tar(), high.tar()]), tmp_path)
    manager.store.hold(image_id, "zone:p")
    files = await StoredImages(manager).kernel(image_id)
    assert Path(files.image_path).read_bytes() == b"new kernel"
    assert (files.addons_path, files.initramfs_path) == ("", "")


HOSTILE = {
    "symlink": (layer(kernel_files(image=None)).symlink("kernel/image", "/etc/shadow"), "a symbolic link"),
    "device": (layer(kernel_files(image=None)).add("kernel/image", tarfile.BLKTYPE, devmajor=8), "a device"),
    "pipe": (layer(kernel_files(image=None)).add("kernel/image", tarfile.FIFOTYPE), "a pipe"),
    "directory": (layer(kernel_files(image=None)).dir("kernel/image"), "a directory"),
    "folder is a link": (layer({}).symlink("kernel", "/boot"), "no directory /kernel"),
    "whiteout": (layer(kernel_files()).dir("x"), None),
    "addons symlink": (
        layer(kernel_files(addons_squashfs=None)).symlink("kernel/addons.squashfs", "../../../etc/passwd"),
        "a symbolic link",
    ),
    "one file twice": (
        layer(kernel_files(image=b"both", addons_squashfs=None)).link(
            "kernel/addons.squashfs", "kernel/image"
        ),
        "two names",
    ),
    "oversized": (layer(kernel_files(image=bytes(100_001))), "100001 bytes, more than 100000"),
    "oversized addons": (layer(kernel_files(addons_squashfs=bytes(50_001))), "more than 50000"),
    "empty": (layer(kernel_files(image=b"")), "is empty"),
    "no metadata": (layer(kernel_files(metadata=None)), "no /kernel/metadata"),
    "bad metadata": (layer(kernel_files(metadata=b"\x1b[2J")), "not KEY=VALUE"),
    "bad config": (layer(kernel_files(config_gz=b"\x1f\x8b\x08")), "config.gz"),
    "ordinary image": (Layer().file("etc/passwd", b"root"), "no directory /kernel"),
    "other layers too large": (layer(kernel_files()).file("x", bytes(400_000)), "unpacked bytes|become more"),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_hostile_kernel_image_is_refused_with_the_cause(
    manager: ImageManager, tmp_path: Path, what: str
) -> None:
    made, cause = HOSTILE[what]
    layers = [made.tar()]
    if cause is None:
        layers.append(Layer().file(".wh.kernel").tar())
        cause = "no directory /kernel"
    fault = await _refused(manager, build(layers), tmp_path)
    assert isinstance(fault, Refused | Exhausted), fault
    assert re.search(cause, str(fault)), fault


async def test_kernel_of_a_damaged_store_is_refused(manager: ImageManager, tmp_path: Path) -> None:
    image = kernel_image()
    image_id = await _put(manager, image, tmp_path)
    manager.store.hold(image_id, "zone:p")
    (blob,) = (manager.store.files.blob_path(one.descriptor["digest"]) for one in image.layers)
    whole = blob.read_bytes()
    blob.unlink()
    with pytest.raises(Broken, match="pull it again"):
        await StoredImages(manager).kernel(image_id)
    (told,) = await manager.kernels.listed()
    assert "is gone" in told.fault
    blob.write_bytes(whole[:-20] + bytes(20))
    with pytest.raises(Refused):
        await StoredImages(manager).kernel(image_id)
    assert _folders(manager) == []
    blob.write_bytes(whole)
    files = await StoredImages(manager).kernel(image_id)
    assert (await manager.verify(manager.store.get(image_id))).faults == ()
    Path(files.image_path).chmod(0o600)
    with Path(files.image_path).open("r+b") as file:
        file.write(b"X")
    (fault,) = (await manager.verify(manager.store.get(image_id))).faults
    assert fault == "the kernel's image has another digest"


@pytest.mark.parametrize("times", [0, 2])
async def test_kernel_of_an_image_without_its_layers_is_refused(tmp_path: Path, times: int) -> None:
    """An image stored before kernels were supported may have no layers in the store."""
    first = ImageManager(_settings(tmp_path))
    await first.start()
    image_id = await _put(first, kernel_image(), tmp_path)
    await first.stop()
    with contextlib.closing(sqlite3.connect(first.store.files.index)) as index, index:
        ((layers,),) = index.execute("SELECT layers FROM images").fetchall()
        index.execute("UPDATE images SET layers = ?", (json.dumps(json.loads(layers) * times),))
    manager = ImageManager(_settings(tmp_path))
    await manager.start()
    try:
        manager.store.hold(image_id, "zone:p")
        with pytest.raises(Refused, match="not all of its layers are kept.*pull it again"):
            await StoredImages(manager).kernel(image_id)
        assert _folders(manager) == []
    finally:
        await manager.stop()


async def test_extracted_kernel_counts_as_disk_usage(manager: ImageManager, tmp_path: Path) -> None:
    image_id = await _put(manager, kernel_image(), tmp_path)
    manager.store.hold(image_id, "zone:p")
    before = await manager.usage()
    await StoredImages(manager).kernel(image_id)
    after = await manager.usage()
    assert after.bytes - before.bytes >= 55_000 + 12_000
    du = await asyncio.to_thread(
        subprocess.run, ["du", "-s", "-B1", str(after.path)], capture_output=True, text=True, check=True
    )
    assert abs(after.bytes / int(du.stdout.split()[0]) - 1) < 0.01


async def test_image_of_an_installed_kernel(manager: ImageManager, tmp_path: Path) -> None:
    """As made by zone/kernelimage.py."""
    versions = [path.name.removeprefix("vmlinuz-") for path in Path("/boot").glob("vmlinuz-*-amd64")]
    versions = [one for one in versions if "cloud" not in one]
    if not versions:
        pytest.skip("needs a kernel with 9p (apt-get install linux-image-amd64)")
    made = tmp_path / "kernel.tar"
    command = [sys.executable, "kernelimage.py", "--kernel", versions[-1], "--output", str(made)]
    await asyncio.to_thread(subprocess.run, command, cwd=ROOT / "zone", check=True)
    roomy = ImageManager(replace(_settings(tmp_path / "roomy"), kernels=KernelSettings()))
    await roomy.start()
    try:
        ((image, name),) = await roomy.import_layout(made, None)
        assert name == f"localhost/kernel:{versions[-1]}"
        (told,) = await roomy.kernels.listed()
        assert told.metadata == Metadata(versions[-1], "zone", platform.machine())
        roomy.store.hold(image.id, "zone:p")
        files = await StoredImages(roomy).kernel(image.id)
        assert Path(files.image_path).read_bytes() == Path(f"/boot/vmlinuz-{versions[-1]}").read_bytes()
        names = await asyncio.to_thread(
            subprocess.run,
            ["cpio", "-t", "--quiet", "-F", files.initramfs_path],
            capture_output=True,
            text=True,
        )
        listed = names.stdout.split()
        assert "lib/modules/order" in listed and "lib/modules/squashfs.ko" in listed and "init" not in listed
    finally:
        await roomy.stop()


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    with Victims() as running:
        yield running


def test_every_step_is_here() -> None:
    command = [sys.executable, "-m", "cri", "--list-checkpoints"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert {step for step in listed if step.startswith("kernel-")} == set(STEPS)


@killed_at(STEPS)
async def test_kill_during_the_extraction_leaves_the_kernel_or_nothing(
    tmp_path: Path, victims: Victims, step: str
) -> None:
    image = kernel_image()
    with LyingRegistry("kernel", "1", image) as registry:
        name = f"{registry.netloc}/kernel:1"
        order = Order(str(tmp_path / "state"), name, kernel=True, kill_at=step)
        assert (await asyncio.to_thread(victims.run, order)).killed
    manager = ImageManager(_settings(tmp_path))
    await manager.start()
    try:
        assert list(manager.store.files.ingest.iterdir()) == []
        assert len(_folders(manager)) == (step == "kernel-take.named")
        manager.store.hold(image.id, "zone:p")
        files = await StoredImages(manager).kernel(image.id)
        assert Path(files.image_path).read_bytes() == kernel_files()["image"]
        assert (await manager.verify(manager.store.get(image.id))).faults == ()
        await manager.remove(name)
        manager.store.release("zone:p")
        assert _folders(manager) == manager.store.files.named() == []
    finally:
        await manager.stop()
