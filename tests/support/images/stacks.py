"""Images built into stacks of filesystems, mounted as a zone has them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from cri.images.bounds.cancel import CancelToken
from cri.images.layer.layers import read_layer
from cri.images.rootfs import tree_cache
from cri.images.rootfs.plan import Planner
from cri.images.rootfs.tree_cache import TreeCache
from cri.images.settings import ImageSettings
from cri.images.worker.layers import BuiltFilesystem, convert
from cri.images.worker.workers import LayerWorkers
from tests.support.images.images import BuiltImage


def built(
    image: BuiltImage, directory: Path, ends: Sequence[int] = (), cached: bool = False
) -> list[tuple[Path, BuiltFilesystem]]:
    """The filesystems of an image, lowest first.

    ends: how many layers lie below the end of each filesystem but the topmost; none: all are one. cached:
    each is planned from what was put on the disk of those below.
    """
    settings = ImageSettings(directory)
    directory.mkdir()
    planner = Planner("image", settings.limits)
    blobs: list[Path] = []
    stack: list[tuple[Path, BuiltFilesystem]] = []
    trees: list[TreeCache] = []
    start = 0
    for number, blob in enumerate(image.layers):
        blobs.append(directory / f"layer{number}")
        blobs[-1].write_bytes(blob.data)
        planner.apply(read_layer([blob.data], len(blob.data), blob.diff_id, settings.limits).entries)
        if number + 1 not in (*ends, len(image.layers)):
            continue
        plan = planner.plan()
        out = directory / f"fs{number}"
        with closing(LayerWorkers(settings.limits)) as workers:
            made_of = convert(blobs, plan, out, settings, workers, CancelToken(), lambda _: None)
        stack.append((out, made_of))
        if cached:
            names = tuple(one.diff_id for one in image.layers[start : number + 1])
            spent = (*plan.spent, 0, 0, 0, 0)
            made = TreeCache(str(number), names, plan.serial, spent, plan.root, plan.directories)
            (directory / f"cache{number}").write_bytes(tree_cache.pack(made))
            loaded = tree_cache.load(directory / f"cache{number}")
            assert loaded == made
            trees.append(loaded)
            planner = Planner("image", settings.limits, trees)
            start = number + 1
    return stack


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
