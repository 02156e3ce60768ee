"""A program that pulls and removes images in child processes; the children are killed on the way.

The children are forks, since a new interpreter for every kill would take most of a test's time. Input and
output are JSON objects, an object a line: see Order and Outcome.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from daemonkit import checkpoints
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.registry import names
from images.registry.credentials import ANONYMOUS

ROOT = Path(__file__).parents[3]
# Each layer becomes a filesystem.
PART_BYTES = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Order:
    """A child that opens a store, and pulls an image, or pulls and removes it, or takes a kernel out of it.

    repair: no pull; repair the present image.

    tag: a further name, which the child adds and removes.

    kill_at: a step (see daemonkit.checkpoints), "": none; after: seconds from the opened store until the
    kill, below 0: no kill.
    """

    state: str
    name: str
    remove: bool = False
    kernel: bool = False
    repair: bool = False
    tag: str = ""
    kill_at: str = ""
    after: float = -1.0


@dataclass(frozen=True)
class Outcome:
    """killed: by SIGKILL, else it ended well; seconds: from the open store to the end."""

    killed: bool
    seconds: float


class Victims:
    """The program, from outside."""

    def __enter__(self) -> Victims:
        command = [sys.executable, "-m", "tests.support.images.image_victim"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        self._process.stdout.close()

    def run(self, order: Order) -> Outcome:
        """Blocks until the child and the child's processes have ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the program ended"
        return Outcome(**json.loads(line))


def main() -> None:
    """Carry out orders until the input ends."""
    # What a killed child leaves running comes to us, and is waited for.
    assert ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    for line in sys.stdin:
        outcome = _run(Order(**json.loads(line)))
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
        sys.stdout.flush()


def _run(order: Order) -> Outcome:
    opened, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(opened)
        asyncio.run(_work(order, told))
        os._exit(0)
    os.close(told)
    os.read(opened, 1)
    os.close(opened)
    started = time.monotonic()
    ended = os.pidfd_open(child)
    if order.after >= 0:
        select.select([ended], [], [], order.after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(ended)
    seconds = time.monotonic() - started
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, status
    return Outcome(killed, seconds)


async def _work(order: Order, told: int) -> None:
    checkpoints.arm(order.kill_at)
    state = Path(order.state)
    settings = ImageSettings(state, state / "certs.d", downloads_per_image=2, part_bytes=PART_BYTES)
    manager = ImageManager(settings)
    await manager.start()
    os.write(told, b".")
    if order.repair:
        image = manager.store.resolve(order.name)
        await manager.repair(image, await manager.verify(image), ANONYMOUS)
    else:
        image = await manager.pull(names.parse(order.name), ANONYMOUS)
    if order.kernel:
        manager.store.hold(image.id, "zone:victim")
        await manager.kernels.files(image.id)
    if order.tag:
        await manager.tag(image, names.parse(order.tag))
        await manager.untag(names.parse(order.tag))
    if order.remove:
        await manager.remove(order.name)
    await manager.stop()


if __name__ == "__main__":
    main()
