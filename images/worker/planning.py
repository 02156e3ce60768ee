"""An image's filesystems planned in a worker of its own, as the daemon has them.

The daemon passes lists and tree caches on as open files, and gets plans to be passed on. It looks into none
of them, since they are made of a stranger's entries.
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
from images.worker.frames import JobOutcome
from images.worker.session import Worker
from images.worker.workers import LayerWorkers

T = TypeVar("T")
MOST = (1 << 63) - 1
"""More than an image has of anything that is counted."""
EMPTY = -1
"""Instead of the layer of an account file that has no data."""
_HASH = 32
_OWN_BYTES = 16 << 20
# Memory of entries in a tree: some 10,000 of them.
_SMALL = 4 << 20


class StoredPlan(NamedTuple):
    """A planned filesystem.

    stored: the plan itself, for workers; tree: its tree cache; content: see ContentId; order: the numbers of
    the layers that files come from, in the order of the stream; file_bytes: of files, copied out of layers;
    accounts: those account files that are others now than in the filesystems below, with the layer that has
    the data, or EMPTY; None: it is gone. lost: see LossCount.named. writer: may also write the filesystem.
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
    """The planning of one image; blocks, and is used by one thread at a time; to be closed."""

    def __init__(self, workers: LayerWorkers, subject: str, folder: Path) -> None:
        """folder: for the files of plans, which have no names."""
        self._workers = workers
        self._subject = subject
        self._folder = folder
        self._worker: Worker | None = None
        self._memory = 0
        self._plans: list[StoredPlan] = []

    def close(self) -> None:
        """End the worker, and remove the files of all plans: a failed pull builds only some of them."""
        self._end_worker()
        for plan in self._plans:
            plan.close()

    def _end_worker(self) -> None:
        """Give back all that it has in memory."""
        if self._worker is not None:
            self._worker.close()

    def begin(
        self, caches: Sequence[Path], expected: Sequence[tuple[str, tuple[str, ...]]], token: CancelToken
    ) -> list[Cost]:
        """Go on from the tree caches of the lowest filesystems; the cost of each that can be used.

        caches: their files, of which some may be missing; expected: chain id and compressed layers of each.
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
        """Apply the next layer, by its list; its cost, None: the list cannot be used."""

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
        """Plan the filesystem of the layers applied since the last one.

        layers: its compressed layers; diff_ids: of all layers up to its topmost one; below: see content_id().
        """
        with ExitStack() as undo:
            stored = undo.enter_context(tempfile.TemporaryFile(dir=self._folder))
            tree = undo.enter_context(tempfile.TemporaryFile(dir=self._folder))
            # Neither is longer than what all entries may take in memory, but for what each has in any case.
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
        """The topmost filesystem's plan, after which nothing is planned."""
        if self._memory <= _SMALL:
            # Another worker would take longer to begin than this one to write.
            return plan._replace(writer=self)
        # It holds all entries in memory, and the last builds do not need it.
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
        """Write the topmost filesystem, as the job WRITE; then it ends. files: the sink, too, as the first.

        Its worker has read no layer that this filesystem is not made of.
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
    """Takes the fields of a plan with these files; end: how many layers there are up to its topmost one."""

    def decode(answer: FieldReader) -> StoredPlan:
        value, first = answer.data(_HASH, _HASH), answer.data(_HASH)
        order = answer.numbers(end, end - 1)
        if any(upper <= lower for upper, lower in pairwise(order)):
            raise Malformed("layers in another order than that of the stream")
        file_bytes = answer.number(MOST)
        accounts: dict[str, int | None] = {}
        for path in ACCOUNT_FILES:
            changed, there = answer.flag(), answer.flag()
            (layer,) = answer.numbers(1, end - 1) or [EMPTY]
            if changed:
                accounts[path] = layer if there else None
        counts = {name: answer.number(MOST) for name in NAMES.values()}
        lost = {name: count for name, count in counts.items() if count}
        content = ContentId(f"sha256:{value.hex()}", first)
        return StoredPlan(stored, tree, content, tuple(order), file_bytes, accounts, lost)

    return decode


def read_cost(answer: FieldReader) -> Cost:
    """A cost in an answer."""
    return Cost(*(answer.number(MOST) for _ in Cost._fields))
