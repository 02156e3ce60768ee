"""``protect zone logs``: what the containers of a zone wrote, in the order of time.

The files are those of CRI; xenpod-cri knows where they are.  What was rotated away is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from protect.cli import daemons, find
from protect.cli.daemons import TIMEOUT
from protect.cli.errors import Command, CommandFailed
from protect.cli.output import plain
from protect.cli.usage.values import count
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_LINE_LIMIT = 1 << 20
"""Bytes of one line of a log; CRI cuts lines at 16 KiB and says so ("P")."""


@dataclass(frozen=True, slots=True, order=True)
class LogLine:
    """One line; ``time`` is RFC 3339 in UTC, so texts have the order of times."""

    time: str
    container: str
    stream: str
    text: str


def add_arguments(verb: argparse.ArgumentParser, id_help: str) -> None:
    verb.add_argument("id", help=id_help)
    text = "only this container (workload), by a prefix of its id or by its name"
    verb.add_argument("--workload", default="", metavar="ID", help=text)
    verb.add_argument(
        "--tail", "-n", type=count, default=0, metavar="N", help="the last lines; 0: all (default)"
    )
    verb.add_argument("--timestamps", action="store_true", help="show the time of each line")


async def logs(options: argparse.Namespace) -> None:
    """Show the logs.  CommandFailed: the zone is of no pod of xenpod-cri, or a log cannot be read."""
    async with daemons.zones(options) as zones:
        zone_id = await daemons.zone_id(zones, options.id)
    names: dict[str, str] = {}
    paths: dict[str, Path] = {}
    async with daemons.runtime(options) as runtime:
        filtered = cri.ContainerFilter(pod_sandbox_id=zone_id)
        request = cri.ListContainersRequest(filter=filtered)
        for one in (await runtime.ListContainers(request, timeout=TIMEOUT)).containers:
            names[one.id] = one.metadata.name
            asked = cri.ContainerStatusRequest(container_id=one.id)
            path = (await runtime.ContainerStatus(asked, timeout=TIMEOUT)).status.log_path
            if path:
                paths[one.id] = Path(path)
    if options.workload:
        wanted = find.one_of(list(names), options.workload, "workload", names)
        paths = {one: path for one, path in paths.items() if one == wanted}
    if not paths:
        raise CommandFailed(f"zone {zone_id} has no such container with a log in xenpod-cri")
    await asyncio.to_thread(_print, {names[one]: path for one, path in paths.items()}, options)


def _print(paths: dict[str, Path], options: argparse.Namespace) -> None:
    try:
        merged: Iterable[LogLine] = heapq.merge(*(read(path, name) for name, path in paths.items()))
        for line in deque(merged, options.tail) if options.tail else merged:
            head = f"{line.time} " if options.timestamps else ""
            head += f"{plain(line.container)}: " if len(paths) > 1 else ""
            sys.stdout.write(f"{head}{_shown(line.text)}\n")
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandFailed(f"read the log {error.filename}: {error.strerror or error}") from error


def read(path: Path, container: str) -> Iterator[LogLine]:
    """The lines of a CRI log (``TIME STREAM TAGS TEXT``), parts of one joined; others are skipped."""
    parts: dict[str, list[str]] = {}
    with path.open("rb") as file:
        while line := file.readline(_LINE_LIMIT):
            words = line.decode(errors="replace").rstrip("\n").split(" ", 3)
            if len(words) != 4:
                continue
            time, stream, tags, untrusted = words
            parts.setdefault(stream, []).append(untrusted)
            if tags.split(":")[0] != "P":
                yield LogLine(time, container, stream, "".join(parts.pop(stream)))


def _shown(untrusted: str) -> str:
    return "".join(c if c == "\t" else plain(c) for c in untrusted)


COMMANDS: dict[str, Command] = {"zone logs": logs}
