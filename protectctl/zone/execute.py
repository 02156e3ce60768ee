"""``protect zone exec``, ``protect workload exec``: run a process in a workload, with our own streams."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncIterator, Iterator

from protectctl import daemons, find
from protectctl.command_errors import CommandEnded, CommandFailed
from xenpod_proto.protect.v1 import protect_pb2 as pb

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHUNK_BYTES = 1 << 15


def add_arguments(verb: argparse.ArgumentParser, id_help: str) -> None:
    verb.add_argument("id", help=id_help)
    verb.add_argument("--interactive", "-i", action="store_true", help="give it standard input")
    verb.add_argument("--tty", "-t", action="store_true", help="give it a terminal")
    verb.add_argument("--env", "-e", action="append", default=[], metavar="NAME=VALUE")
    verb.add_argument("--cwd", default="/", metavar="PATH", help="working directory (default: /)")
    verb.add_argument("--user", type=_user, default=(0, 0), metavar="UID[:GID]", help="default: 0:0")
    verb.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run")


async def zone_exec(options: argparse.Namespace) -> None:
    """Run a command in the zone's workload.  CommandFailed: none runs, or several do and none is named."""
    async with daemons.zones(options) as zones:
        zone_id = await daemons.zone_id(zones, options.id)
    async with daemons.workloads(options) as workloads:
        listed = await daemons.workload_list(workloads, zone_id)
    running = [one.id for one in listed if one.state == pb.WORKLOAD_STATE_RUNNING]
    if options.workload:
        return await _run(options, find.one_of(running, options.workload, "workload"))
    if len(running) != 1:
        shown = f": name one with --workload: {', '.join(running)}" if running else ""
        raise CommandFailed(f"zone {zone_id} has {len(running)} running workloads{shown}")
    await _run(options, running[0])


async def workload_exec(options: argparse.Namespace) -> None:
    async with daemons.workloads(options) as workloads:
        known = [one.id for one in await daemons.workload_list(workloads)]
    await _run(options, find.one_of(known, options.id, "workload"))


async def _run(options: argparse.Namespace, workload_id: str) -> None:
    """Run the process, and end with its exit status (CommandEnded)."""
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not words:
        options.refuse("name the command to run, after --")
    if options.tty and not (options.interactive and sys.stdin.isatty()):
        raise CommandFailed("a terminal (--tty) needs --interactive, and a terminal as standard input")
    uid, gid = options.user
    term = [f"TERM={os.environ.get('TERM', 'xterm')}"] if options.tty else []
    process = {
        "args": words,
        "cwd": options.cwd,
        "env": [_PATH, *term, *options.env],
        "user": {"uid": uid, "gid": gid},
        "terminal": options.tty,
    }
    start = pb.ExecStart(
        workload_id=workload_id,
        process=json.dumps(process).encode(),
        tty=options.tty,
        stdin=options.interactive,
    )
    async with daemons.workloads(options) as workloads:
        with _raw_terminal() if options.tty else contextlib.nullcontext():
            async for said in workloads.Exec(_input(start)):
                match said.WhichOneof("output"):
                    case "stdout":
                        _write(1, said.stdout)
                    case "stderr":
                        _write(2, said.stderr)
                    case _:
                        raise CommandEnded(said.exit.exit_code)
    raise CommandFailed("protectd ended the process's streams without its exit status")


async def _input(start: pb.ExecStart) -> AsyncIterator[pb.ExecInput]:
    """The start, then standard input and sizes of the terminal on their arrival."""
    yield pb.ExecInput(start=start)
    # Bounded: the reader waits until protectd has taken the input.
    inputs: asyncio.Queue[pb.ExecInput] = asyncio.Queue(4)
    loop = asyncio.get_running_loop()
    if start.tty:
        yield _size()
        resizes = asyncio.Event()
        loop.add_signal_handler(signal.SIGWINCH, resizes.set)
        following = asyncio.ensure_future(_follow_size(resizes, inputs))
        following.add_done_callback(lambda _: loop.remove_signal_handler(signal.SIGWINCH))
    if start.stdin:
        threading.Thread(target=_read_input, args=(loop, inputs), daemon=True).start()
    while True:
        yield await inputs.get()


def _read_input(loop: asyncio.AbstractEventLoop, inputs: asyncio.Queue[pb.ExecInput]) -> None:
    """In a thread of its own, since standard input may be a file, a pipe or a terminal."""
    try:
        while data := os.read(0, _CHUNK_BYTES):
            asyncio.run_coroutine_threadsafe(inputs.put(pb.ExecInput(stdin=data)), loop).result()
        asyncio.run_coroutine_threadsafe(inputs.put(pb.ExecInput(stdin_eof=True)), loop).result()
    except (RuntimeError, asyncio.CancelledError):
        return  # the process has ended, and the loop with it


async def _follow_size(resizes: asyncio.Event, inputs: asyncio.Queue[pb.ExecInput]) -> None:
    while await resizes.wait():
        resizes.clear()
        await inputs.put(_size())


def _size() -> pb.ExecInput:
    size = shutil.get_terminal_size()
    return pb.ExecInput(resize=pb.TerminalSize(rows=size.lines, columns=size.columns))


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Every key goes to the process, until the process ends."""
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _user(text: str) -> tuple[int, int]:
    uid, colon, gid = text.partition(":")
    if not uid.isdecimal() or (colon and not gid.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not UID or UID:GID, in numbers")
    return int(uid), int(gid or "0")
