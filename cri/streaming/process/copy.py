"""Copies a client's standard streams to a process and back, and the sizes of its terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Never

from cri.streaming.process.command import Command
from cri.streaming.transport.inbox import InOrder
from cri.streaming.transport.wire import ClientGone
from cri.zones.process import Message, ProcessStreams
from daemonkit.loop.fair_scheduler import pause
from daemonkit.tasks import race

_KEPT_CHARACTERS = 4096
"""Maximum of kept characters of an incomplete object."""
_MOST_CELLS = 0xFFFF
_BLANKS = " \t\r\n"


async def copy_streams(process: ProcessStreams[Message], command: Command, *, stdin: bool, tty: bool) -> int:
    """Copy until the process ends; returns its exit code.  Faults of the process; ClientGone.

    ``stdin`` and ``tty``: the process has standard input, and a terminal; other input of the client is
    dropped.
    """
    return await race(_copy_output(process, command), _copy_input(process, command, stdin, tty))


async def _copy_output(process: ProcessStreams[Message], command: Command) -> int:
    code = 0
    async for output in process.outputs():
        match output.WhichOneof("output"):
            case "stdout":
                await command.stdout(output.stdout)
            case "stderr":
                await command.stderr(output.stderr)
            case "exit":
                code = output.exit.exit_code
    return code


async def _copy_input(process: ProcessStreams[Message], command: Command, stdin: bool, tty: bool) -> Never:
    """Copy input in the order of its arrival; never returns: the process may go on after the end of input.

    With this order, a terminal has its new size before the process reads later input.
    """
    wanted = {"stdin": (command.stdin, stdin), "resize": (command.resizes, tty)}
    for inbox, has in wanted.values():
        if inbox is not None and not has:
            inbox.discard()
    inputs = InOrder({name: inbox for name, (inbox, has) in wanted.items() if inbox is not None and has})
    sizes = Sizes()
    while came := await inputs.read():
        match came:
            case "stdin", b"":
                await process.stdin_eof()
            case "stdin", data:
                await process.stdin(data)
            case _, data:
                last = None
                for size in sizes.parse(data):
                    last = size
                    await pause()
                if last:  # the last of several sizes
                    await process.resize(last.rows, last.columns)
    await asyncio.Event().wait()
    raise AssertionError("an event that nobody sets was set")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a terminal, in characters."""

    rows: int
    columns: int


class Sizes:
    """Parses terminal sizes.  Clients send sizes as JSON objects, cut anywhere."""

    def __init__(self) -> None:
        self._kept = ""

    def parse(self, data: bytes) -> Iterator[Size]:
        """The sizes completed by ``data``; ClientGone for anything else.

        Sizes of 0 by 0 are skipped: clients send them if their own output is no terminal.
        """
        for begin in range(0, len(data), _KEPT_CHARACTERS):
            yield from self._parse(data[begin : begin + _KEPT_CHARACTERS])

    def _parse(self, data: bytes) -> Iterator[Size]:
        """The sizes completed by a few bytes: the rest is copied after each."""
        self._kept = (self._kept + data.decode("latin-1")).lstrip(_BLANKS)
        while self._kept:
            try:
                value, end = json.JSONDecoder().raw_decode(self._kept)
            except ValueError:
                if len(self._kept) > _KEPT_CHARACTERS:
                    raise ClientGone("terminal sizes that are not JSON") from None
                return
            except RecursionError:
                raise ClientGone("terminal sizes that are not JSON") from None
            self._kept = self._kept[end:].lstrip(_BLANKS)
            if size := _size(value):
                yield size


def _size(untrusted: object) -> Size | None:
    if not isinstance(untrusted, dict):
        raise ClientGone("a terminal size that is no object")
    rows, columns = untrusted.get("Height"), untrusted.get("Width")
    for number in (rows, columns):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST_CELLS:
            raise ClientGone("a terminal size without Width and Height")
    return Size(rows, columns) if rows and columns else None
