"""Shows a pull as progress bars: one for each layer, one for the filesystem image."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from protectctl.output import plain
from xenpod_proto.images.v1 import images_pb2 as pb

_STATES = {
    pb.PART_STATE_WAITING: "waiting",
    pb.PART_STATE_ACTIVE: "",
    pb.PART_STATE_DONE: "done",
}
_FILESYSTEM = "filesystem"
_SHORT = 12


class Bars:
    """Progress bars on stderr while the block runs; hidden when stderr is not a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        # Names are untrusted: no markup.
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._head: TaskID | None = None
        self._passed_over: set[str] = set()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, pull: pb.PullProgress) -> None:
        """Show the progress of the pull, and each skipped registry host once."""
        for host in sorted(pull.passed_over.keys() - self._passed_over):
            self._passed_over.add(host)
            text = plain(f"{host} is asked last: {pull.passed_over[host]}")
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
        if pull.stage == pb.PULL_STAGE_RESOLVING:
            if self._head is None:
                self._head = self._progress.add_task(pull.name, total=None, state="resolving")
            return
        if self._head is not None:
            self._progress.remove_task(self._head)
            self._head = None
        for layer in pull.layers:
            self._bar(layer.name, layer.name.partition(":")[2][:_SHORT], layer)
        if pull.filesystem.total_bytes:
            self._bar(_FILESYSTEM, _FILESYSTEM, pull.filesystem)

    def done(self) -> None:
        """Show every bar as complete."""
        for task in self._tasks.values():
            total = self._progress.tasks[self._progress.task_ids.index(task)].total
            self._progress.update(task, completed=total or 0, state="done")

    def _bar(self, key: str, text: str, part: pb.PartProgress) -> None:
        state = _STATES.get(part.state, "")
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(text, total=part.total_bytes, state=state)
        self._progress.update(self._tasks[key], completed=part.bytes, total=part.total_bytes, state=state)
