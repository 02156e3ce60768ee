"""A program that logs a stream which depends on offsets only; tests kill it at any moment.

``python -m tests.support.logs.log_writer LOG JOURNAL SIZE [rotate]`` writes both streams up to SIZE bytes
each from where the journal says, prints ``begun`` and ``done``, and with ``rotate`` renames the log now and
then, as the kubelet does.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from protect.stdio.log import LogSink, WorkloadLog


def content(stream: str, size: int) -> bytes:
    """The stream's bytes: numbered lines of many lengths, some empty, some longer than a log line."""
    rng = random.Random(stream)
    parts: list[bytes] = []
    total = 0
    number = 0
    while total < size:
        number += 1
        length = rng.choice(
            [0, 1, 10, 60, 60, 60, 200, 1000, 16_384, 20_000, 40_000] if number % 50 == 0 else [0, 5, 40, 80]
        )
        line = f"{stream} {number} ".encode() + b"x" * length + b"\n"
        parts.append(line)
        total += len(line)
    return b"".join(parts)[:size]


async def feed(sink: LogSink, whole: bytes) -> None:
    """What a resumed link does: from the sink's offset on, in pieces of any size."""
    rng = random.Random()
    at = sink.consumed
    while at < len(whole):
        piece = whole[at : at + rng.randint(1, 30_000)]
        consumed = await sink.write(piece)
        at += len(piece)
        assert consumed <= at
    if not sink.finished:
        await sink.finish()


async def rotate(log: WorkloadLog, path: Path) -> None:
    """Rename and reopen, for ever."""
    while True:
        await asyncio.sleep(random.random() / 200)
        number = len(list(path.parent.glob(f"{path.name}*")))
        os.rename(path, path.with_name(f"{path.name}.{number:06d}"))
        await log.reopen()


async def main(path: Path, journal: Path, size: int, rotating: bool) -> None:
    wholes = {name: content(name, size) for name in ("stdout", "stderr")}
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    log = await WorkloadLog.open(str(path), journal)
    rotation = asyncio.create_task(rotate(log, path)) if rotating else None
    await asyncio.gather(*(feed(getattr(log, name), whole) for name, whole in wholes.items()))
    if rotation is not None:
        rotation.cancel()
    sys.stdout.write("done\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["rotate"]))
