"""Plans the filesystems of one image, with the entries of all its layers.

The worker's side; planning.py is the daemon's side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from images.bounds.fields import FieldWriter
from images.bounds.limits import ImageLimits
from images.layer import layer_cache
from images.layer.layers import Cost
from images.layer.losses import NAMES
from images.rootfs import tree_cache
from images.rootfs.content import content_id
from images.rootfs.plan import FilesystemPlan, Planner
from images.rootfs.stream import ACCOUNT_FILES, StreamPipe
from images.rootfs.tree_cache import TreeCache
from images.worker import wire
from images.worker.writer import write_files

BEGIN, APPLY, PLAN, WRITE = "begin", "apply", "plan", "write"
"""The requests; BEGIN may come first, once, and WRITE comes last."""


class Planning:
    """The state after the layers applied until now; each request returns the fields of its answer."""

    def __init__(self, subject: str, limits: ImageLimits) -> None:
        self._subject = subject
        self._limits = limits
        self._planner = Planner(subject, limits, ())
        self._cost = Cost()
        self.requests: Mapping[str, Callable[..., FieldWriter]] = {
            BEGIN: self._begin,
            APPLY: self._apply,
            PLAN: self._plan,
            WRITE: self._write,
        }

    def _begin(
        self, _: int, files: Sequence[BinaryIO], expected: Sequence[tuple[str, tuple[str, ...]]]
    ) -> FieldWriter:
        """Continue from tree caches; answers the number of usable caches, and the cost of each.

        expected: chain id and compressed layers of each.
        """
        below: list[TreeCache] = []
        for file, key in zip(files, expected, strict=True):
            cache = tree_cache.load_tree(file)
            # Layers that claim the same contents may lie.
            if cache is None or (cache.chain_id, cache.layers) != key:
                break
            below.append(cache)
        self._planner = Planner(self._subject, self._limits, below)
        fields = FieldWriter().number(len(below))
        for cache in below:
            for number in cache.spent[2:]:
                fields.number(number)
        return fields

    def _apply(self, _: int, files: Sequence[BinaryIO], digest: str, diff_id: str) -> FieldWriter:
        """Apply a layer's list; answers whether the list is usable, and the layer's cost."""
        index = layer_cache.load_index(files[0], digest, diff_id)
        fields = FieldWriter().number(index is not None)
        cost = Cost() if index is None else index.cost
        if index is not None:
            self._planner.apply(index.entries)
        self._cost = self._cost.plus(cost)
        for number in cost:
            fields.number(number)
        return fields

    def _plan(
        self,
        target: int,
        _: Sequence[BinaryIO],
        chain_id: str,
        layers: tuple[str, ...],
        diff_ids: Sequence[str],
        below: Sequence[str],
    ) -> FieldWriter:
        """Plan a filesystem; the answer's files are the plan and the tree cache, all else is in fields.

        layers: the part's compressed layers; diff_ids: of all layers up to its topmost; below: see
        content_id().
        """
        plan = self._planner.plan()
        content = content_id(plan, diff_ids, below)
        with wire.file(target, 0) as out:
            plan.save(out)
        spent = (*plan.spent, *self._cost)
        cache = TreeCache(chain_id, layers, plan.serial, spent, plan.root, plan.directories)
        with wire.file(target, 1) as out:
            out.write(tree_cache.pack(cache))
        self._cost = Cost()
        fields = FieldWriter().data(bytes.fromhex(content.value.partition(":")[2])).data(content.first)
        fields.numbers(plan.order).number(plan.file_bytes)
        _state_accounts(plan, fields)
        for name in NAMES.values():
            fields.number(plan.lost.get(name, 0))
        return fields

    def _write(
        self,
        target: int,
        files: Sequence[BinaryIO],
        layers: Sequence[int],
        numbers: Sequence[int],
        known: Mapping[tuple[int, int], bytes],
    ) -> FieldWriter:
        """See writer.write_files(). files: the pipe of a tar2sqfs, the plan, these layers."""
        sink, plan, *blobs = files
        given = dict(zip(numbers, blobs, strict=True))
        return write_files(target, StreamPipe(sink.fileno()), plan, given, self._subject, layers, known)


def _state_accounts(plan: FilesystemPlan, fields: FieldWriter) -> None:
    """For each account file: changed or not, present or not, and the layer, if any."""
    for path in ACCOUNT_FILES:
        node = plan.accounts.get(path)
        content = node.content if node is not None else None
        fields.number(path in plan.accounts).number(node is not None)
        fields.numbers([] if content is None else [content.layer])
