"""Plans an image's filesystems in a separate worker: the daemon's side.

The daemon passes lists and tree caches to the worker as open files, and passes the resulting plans on. The
daemon never parses these files, because their content comes from hostile entries.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from images.bounds.cancel import CancelToken
from images.bounds.fields import FieldReader, Malformed
from images.layer.layers import Cost
from images.layer.losses import NAMES
from images.rootfs.content import ContentId
from images.rootfs.stream import ACCOUNT_FILES
from images.worker import jobs, planner
from images.worker.answer_frames import JobOutcome
from images.worker.session import Worker
from images.worker.workers import LayerWorkers

T = TypeVar("T")
LARGEST_INT64 = (1 << 63) - 1
"""Upper bound of every number in an answer."""
EMPTY = -1
"""Stands for the layer of an account file without data."""
_HASH_BYTES = 32
_OWN_BYTES = 16 << 20
# Memory of entries in a tree: about 10,000 entries.
_SMALL_BYTES = 4 << 20


class StoredPlan(NamedTuple):
    """A planned filesystem.

    stored: the plan itself, for workers; tree: its tree cache; content: see ContentId; order: the numbers of
    the layers with files, in the order of the stream; file_bytes: of files, copied out of layers; accounts:
    the account files that differ from the filesystems below, each with the layer of its data, or EMPTY; None:
    deleted. lost: see LossCount.named. writer: may also write the filesystem.
    """

    stored: BinaryIO
    tree: BinaryIO
    content: ContentId
    order: tuple[int, ...]
    file_bytes: int
    accounts: Mapping[str, int | None]
    lost: Mapping[str, int]
    writer: ImagePlanning | None = None

    def close(self) -> None:
        """Remove the files."""
        self.stored.close()
        self.tree.close()


class ImagePlanning:
    """The planning of one image; blocks, for one thread at a time; call close() at the end."""

    def __init__(self, workers: LayerWorkers, subject: str, folder: Path) -> None:
        """folder: for the unnamed files of plans."""
        self._workers = workers
        self._subject = subject
        self._folder = folder
        self._worker: Worker | None = None
        self._memory = 0
        self._plans: list[StoredPlan] = []

    def close(self) -> None:
        """End the worker, and remove the files of all plans: a failed pull builds only some plans."""
        self._end_worker()
        for plan in self._plans:
            plan.close()

    def _end_worker(self) -> None:
        """Free the worker's memory."""
        if self._worker is not None:
            self._worker.close()

    def begin(
        self, caches: Sequence[Path], expected: Sequence[tuple[str, tuple[str, ...]]], token: CancelToken
    ) -> list[Cost]:
        """Continue from the tree caches of the lowest filesystems; returns the cost of each usable cache.

        caches: their files, possibly missing; expected: chain id and compressed layers of each.
        """
        with ExitStack() as stack:
            files: list[BinaryIO] = []
            for path in caches:
                try:
                    files.append(stack.enter_context(path.open("rb")))
                except FileNotFoundError:
                    break
            if not files:
                return []

            def costs(answer: FieldReader) -> list[Cost]:
                return [read_cost(answer) for _ in range(answer.number(len(files)))]

            return self._ask(
                planner.BEGIN, (list(expected[: len(files)]),), files, JobOutcome(), costs, token
            )

    def apply(self, listed: Path, digest: str, diff_id: str, token: CancelToken) -> Cost | None:
        """Apply the next layer from its list; returns its cost, or None if the list is unusable."""

        def cost(answer: FieldReader) -> Cost | None:
            usable, cost = answer.flag(), read_cost(answer)
            return cost if usable else None

        try:
            file = listed.open("rb")
        except FileNotFoundError:
            return None
        with file:
            found = self._ask(planner.APPLY, (digest, diff_id), [file], JobOutcome(), cost, token)
        self._memory += found.memory if found is not None else 0
        return found

    def plan(
        self,
        chain_id: str,
        layers: Sequence[str],
        diff_ids: Sequence[str],
        below: Collection[str],
        token: CancelToken,
    ) -> StoredPlan:
        """Plan the filesystem of the layers applied since the last plan.

        layers: the part's compressed layers; diff_ids: of all layers up to its topmost; below: see
        content_id().
        """
        with ExitStack() as undo:
            stored = undo.enter_context(tempfile.TemporaryFile(dir=self._folder))
            tree = undo.enter_context(tempfile.TemporaryFile(dir=self._folder))
            # Each file is at most as long as all entries in memory, plus a constant.
            outcome = JobOutcome([stored, tree], self._workers.limits.memory_bytes + _OWN_BYTES)
            arguments = (chain_id, tuple(layers), tuple(diff_ids), tuple(below))
            decode = plan_decoder(stored, tree, len(diff_ids))
            plan = self._ask(planner.PLAN, arguments, (), outcome, decode, token)
            for file in (stored, tree):
                file.flush()
            undo.pop_all()
        self._plans.append(plan)
        return plan

    def finished(self, plan: StoredPlan) -> StoredPlan:
        """The topmost filesystem's plan; ends the planning."""
        if self._memory <= _SMALL_BYTES:
            # A new worker would take longer to start than this worker to write.
            return plan._replace(writer=self)
        # The worker holds all entries in memory, and the last builds do not need the entries.
        self._end_worker()
        return plan

    def write(
        self,
        arguments: tuple[object, ...],
        files: Sequence[int],
        outcome: JobOutcome,
        decode: Callable[[FieldReader], T],
        token: CancelToken,
    ) -> T:
        """Write the topmost filesystem, as the job WRITE, and end the worker. files: the sink comes first.

        The worker has read only layers of this filesystem.
        """
        assert self._worker is not None
        with closing(self._worker):
            return self._worker.ask(
                (planner.WRITE, arguments, len(files)), token, outcome, decode, None, files
            )

    def _ask(
        self,
        request: str,
        arguments: tuple[object, ...],
        files: Sequence[BinaryIO],
        outcome: JobOutcome,
        decode: Callable[[FieldReader], T],
        token: CancelToken,
    ) -> T:
        # The first layer of an image may be long in coming.
        if self._worker is None:
            self._worker = self._workers.session(jobs.PLAN, (self._subject,))
        handles = [file.fileno() for file in files]
        return self._worker.ask((request, arguments, len(files)), token, outcome, decode, None, handles)


def plan_decoder(stored: BinaryIO, tree: BinaryIO, end: int) -> Callable[[FieldReader], StoredPlan]:
    """Returns a decoder of a plan's fields for these files; end: number of layers up to the topmost."""

    def decode(answer: FieldReader) -> StoredPlan:
        value, first = answer.data(_HASH_BYTES, _HASH_BYTES), answer.data(_HASH_BYTES)
        order = answer.numbers(end, end - 1)
        if any(upper <= lower for upper, lower in pairwise(order)):
            raise Malformed("layers in another order than that of the stream")
        file_bytes = answer.number(LARGEST_INT64)
        accounts: dict[str, int | None] = {}
        for path in ACCOUNT_FILES:
            changed, there = answer.flag(), answer.flag()
            (layer,) = answer.numbers(1, end - 1) or [EMPTY]
            if changed:
                accounts[path] = layer if there else None
        counts = {name: answer.number(LARGEST_INT64) for name in NAMES.values()}
        lost = {name: count for name, count in counts.items() if count}
        content = ContentId(f"sha256:{value.hex()}", first)
        return StoredPlan(stored, tree, content, tuple(order), file_bytes, accounts, lost)

    return decode


def read_cost(answer: FieldReader) -> Cost:
    """A cost in an answer."""
    return Cost(*(answer.number(LARGEST_INT64) for _ in Cost._fields))
