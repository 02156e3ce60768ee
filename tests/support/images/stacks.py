"""Images built into stacks of filesystems, mounted as a zone has them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from images.bounds.cancel import CancelToken
from images.image_settings import ImageSettings
from images.rootfs.eager import EagerFilesystem
from images.worker.layer_workers import BuiltFilesystem, convert, read_layer
from images.worker.planning import ImagePlanning, StoredPlan
from images.worker.workers import LayerWorkers
from tests.support.images.images import Blob, BuiltImage, digest


def built(
    image: BuiltImage, directory: Path, ends: Sequence[int] = (), cached: bool = False
) -> list[tuple[Path, BuiltFilesystem]]:
    """The filesystems of an image, lowest first.

    ends: how many layers lie below the end of each filesystem but the topmost; none: all are one. cached:
    each is planned from what was put on the disk of those below.
    """
    settings = ImageSettings(directory)
    directory.mkdir()
    with ExitStack() as undo:
        workers = undo.enter_context(closing(LayerWorkers(settings.limits)))
        shelf = Shelf(directory, workers)
        planning = undo.enter_context(closing(shelf.planning([])))
        stack: list[tuple[Path, BuiltFilesystem]] = []
        keys: list[tuple[str, tuple[str, ...]]] = []
        diff_ids = [blob.diff_id for blob in image.layers]
        start = 0
        for number, blob in enumerate(image.layers):
            shelf.apply(planning, blob)
            if number + 1 not in (*ends, len(image.layers)):
                continue
            keys.append((str(number), tuple(diff_ids[start : number + 1])))
            plan = undo.enter_context(closing(shelf.plan(planning, keys[-1], diff_ids[: number + 1])))
            out = directory / f"fs{number}"
            made_of = convert(
                dict(enumerate(shelf.blobs)), plan, out, settings, workers, CancelToken(), lambda _: None
            )
            stack.append((out, made_of))
            start = number + 1
            if cached:
                plan.tree.seek(0)
                (directory / f"cache{number}").write_bytes(plan.tree.read())
                planning = undo.enter_context(closing(shelf.planning(keys)))
    return stack


class Shelf:
    """Layers in a folder, read by workers, with their lists."""

    def __init__(self, directory: Path, workers: LayerWorkers) -> None:
        self._directory = directory
        self._workers = workers
        self.blobs: list[Path] = []

    def planning(self, below: Sequence[tuple[str, tuple[str, ...]]]) -> ImagePlanning:
        """A planning that goes on from the files cache0, cache1, ...; below: see ImagePlanning.begin()."""
        planning = ImagePlanning(self._workers, "image", self._directory)
        caches = [self._directory / f"cache{name}" for name, _ in below]
        assert len(planning.begin(caches, below, CancelToken())) == len(below)
        return planning

    def apply(self, planning: ImagePlanning, blob: Blob, begun: EagerFilesystem | None = None) -> None:
        """Read the next layer and apply the layer."""
        self.blobs.append(self._directory / f"layer{len(self.blobs)}")
        self.blobs[-1].write_bytes(blob.data)
        listed = self._directory / f"list{len(self.blobs)}"
        given = iter([blob.data]), (digest(blob.data), len(blob.data)), blob.diff_id
        with listed.open("xb") as file:
            read_layer(self._workers, *given, file, CancelToken(), begun)
        assert planning.apply(listed, digest(blob.data), blob.diff_id, CancelToken()) is not None

    def plan(
        self, planning: ImagePlanning, key: tuple[str, tuple[str, ...]], diff_ids: Sequence[str]
    ) -> StoredPlan:
        """Plan the next filesystem; key: chain id and layers."""
        return planning.plan(*key, diff_ids, (), CancelToken())


@contextmanager
def mounted(stack: Sequence[Path], at: Path) -> Iterator[Path]:
    """Lowest first; merged as the agent merges them, but for the writable part."""
    at.mkdir()
    with ExitStack() as undo:
        parts = []
        for number, image in enumerate(stack):
            parts.append(at / str(number))
            parts[-1].mkdir()
            subprocess.run(["mount", "-t", "squashfs", "-o", "loop,ro", image, parts[-1]], check=True)
            undo.callback(_unmount, parts[-1])
        if len(parts) == 1:
            yield parts[0]
            return
        merged = at / "merged"
        merged.mkdir()
        lower = ":".join(str(part) for part in reversed(parts))
        options = f"ro,lowerdir={lower}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(merged)], check=True)
        undo.callback(_unmount, merged)
        yield merged


def _unmount(place: Path) -> None:
    subprocess.run(["umount", place], check=True)
