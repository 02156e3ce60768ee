"""``protect zone logs``: the output of a zone's containers, sorted by time.

The command reads the CRI log files, and asks xenpod-cri for their paths.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import os
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from daemonkit.host import inotify
from daemonkit.tasks import race
from protectctl import daemons, find
from protectctl.command_errors import CommandFailed
from protectctl.daemons import TIMEOUT_SECONDS
from protectctl.output import plain
from protectctl.usage.values import count
from protectctl.zone.logfile import LogLine, LogReader
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


def add_arguments(verb: argparse.ArgumentParser, id_help: str) -> None:
    verb.add_argument("id", help=id_help)
    text = "only this container (workload), by a prefix of its id or by its name"
    verb.add_argument("--workload", default="", metavar="ID", help=text)
    verb.add_argument(
        "--tail", "-n", type=count, default=0, metavar="N", help="the last lines; 0: all (default)"
    )
    verb.add_argument("--timestamps", action="store_true", help="show the time of each line")
    text = "go on with new lines of the zone's present containers, until the zone ends"
    verb.add_argument("--follow", "-f", action="store_true", help=text)


async def logs(options: argparse.Namespace) -> None:
    """Show the logs.  CommandFailed: xenpod-cri has no pod with this zone, or a log cannot be read."""
    async with daemons.zones(options) as zones:
        zone_id = await daemons.zone_id(zones, options.id)
    paths = await _paths(options, zone_id)
    show = Lines(options, named=len(paths) > 1)
    with ExitStack() as stack:
        files = [stack.enter_context(closing(LogReader(path, name))) for name, path in paths]
        try:
            if options.follow:
                places = {os.fsencode(path.parent) for _, path in paths}
                mask = inotify.MODIFY | inotify.CREATE | inotify.MOVED_TO
                changed = stack.enter_context(inotify.changes(mask, *places))
                await asyncio.to_thread(show.first, files)
                await _follow(options, zone_id, files, show, changed)
            else:
                await asyncio.to_thread(show.first, files)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandFailed(f"read {error.filename}: {error.strerror or error}") from None


async def _paths(options: argparse.Namespace, zone_id: str) -> Sequence[tuple[str, Path]]:
    """The selected containers: the name of each and the path of its log."""
    names: dict[str, str] = {}
    paths: dict[str, Path] = {}
    async with daemons.runtime(options) as runtime:
        filtered = cri.ContainerFilter(pod_sandbox_id=zone_id)
        request = cri.ListContainersRequest(filter=filtered)
        for one in (await runtime.ListContainers(request, timeout=TIMEOUT_SECONDS)).containers:
            names[one.id] = one.metadata.name
            asked = cri.ContainerStatusRequest(container_id=one.id)
            path = (await runtime.ContainerStatus(asked, timeout=TIMEOUT_SECONDS)).status.log_path
            if path:
                paths[one.id] = Path(path)
    if options.workload:
        wanted = find.one_of(list(names), options.workload, "workload", names)
        paths = {one: path for one, path in paths.items() if one == wanted}
    if not paths:
        raise CommandFailed(f"zone {zone_id} has no such container with a log in xenpod-cri")
    return [(names[one], path) for one, path in paths.items()]


async def _follow(
    options: argparse.Namespace,
    zone_id: str,
    files: Sequence[LogReader],
    show: Lines,
    changed: asyncio.Event,
) -> None:
    """Show new lines until the zone has ended.  AioRpcError: protectd went away."""
    ended = asyncio.ensure_future(_end(options, zone_id))
    try:
        while True:
            changed.clear()
            last = ended.done()
            await asyncio.to_thread(show.more, files)
            if last:
                return ended.result()
            await race(changed.wait(), asyncio.wait([ended]))
    finally:
        ended.cancel()


async def _end(options: argparse.Namespace, zone_id: str) -> None:
    """Wait until the zone is dead, or gone."""
    known = False
    async with daemons.host(options) as service:
        async for event in service.Watch(pb.WatchRequest()):
            match event.WhichOneof("event"):
                case "zone" if event.zone.id == zone_id:
                    known = True
                    if event.zone.state == pb.ZONE_STATE_DEAD:
                        return
                case "zone_gone" if event.zone_gone == zone_id:
                    return
                case "synced" if not known:
                    return


class Lines:
    """Writes lines to standard output.  ``named``: with the container's name before each."""

    def __init__(self, options: argparse.Namespace, *, named: bool) -> None:
        self._timestamps = options.timestamps
        self._tail = options.tail
        self._named = named

    def first(self, files: Sequence[LogReader]) -> None:
        """Show all lines until now, or the last of them (``--tail``)."""
        merged = self._merged(files)
        self._show(deque(merged, self._tail) if self._tail else merged)

    def more(self, files: Sequence[LogReader]) -> None:
        """Show the new lines."""
        self._show(self._merged(files))

    def _merged(self, files: Sequence[LogReader]) -> Iterable[LogLine]:
        return heapq.merge(*(one.lines() for one in files))

    def _show(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            head = f"{line.time} " if self._timestamps else ""
            head += f"{plain(line.container)}: " if self._named else ""
            sys.stdout.write(f"{head}{_shown(line.text)}\n")
        sys.stdout.flush()


def _shown(untrusted: str) -> str:
    return "".join(c if c == "\t" else plain(c) for c in untrusted)
