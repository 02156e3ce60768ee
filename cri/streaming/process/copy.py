"""A client's standard streams joined to a process's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from cri.streaming.process.command import Command
from cri.streaming.race import first_of
from cri.streaming.transport.inbox import Inbox
from cri.streaming.transport.wire import ClientGone
from cri.zones.process import Message, ProcessStreams

_KEPT = 4096
"""Characters of an object that is not whole yet."""
_MOST = 0xFFFF
_BLANKS = " \t\r\n"


class Sink(Protocol):
    """Takes the client's input."""

    async def stdin(self, data: bytes) -> None: ...

    async def stdin_eof(self) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...


async def copy_streams(process: ProcessStreams[Message], command: Command, *, stdin: bool, tty: bool) -> int:
    """Until the process ends; its exit code.  Faults of the process; ClientGone.

    ``stdin`` and ``tty`` say what the process has; what a client sends beyond that is dropped.
    """
    code = 0

    async def forward_output() -> None:
        nonlocal code
        async for output in process.outputs():
            match output.WhichOneof("output"):
                case "stdout":
                    await command.stdout(output.stdout)
                case "stderr":
                    await command.stderr(output.stderr)
                case "exit":
                    code = output.exit.exit_code

    await first_of(forward_output(), _forward_input(process, command, stdin, tty))
    return code


async def _forward_input(process: Sink, command: Command, stdin: bool, tty: bool) -> None:
    """Never returns: the end of input is not the end of the process."""
    async with asyncio.TaskGroup() as group:
        if command.stdin is not None and stdin:
            group.create_task(_stdin(process, command.stdin))
        elif command.stdin is not None:
            command.stdin.discard()
        if command.resizes is not None and tty:
            group.create_task(_resizes(process, command.resizes))
        await asyncio.Event().wait()


async def _stdin(process: Sink, inbox: Inbox) -> None:
    while data := await inbox.read():
        await process.stdin(data)
    await process.stdin_eof()


async def _resizes(process: Sink, inbox: Inbox) -> None:
    async for size in sizes(inbox):
        await process.resize(size.rows, size.columns)


@dataclass(frozen=True, slots=True)
class Size:
    """In characters."""

    rows: int
    columns: int


async def sizes(inbox: Inbox) -> AsyncIterator[Size]:
    """Each size; ClientGone for what is none.  A size of nothing (0 by 0) is passed over, as clients send it
    when their own output is no terminal."""
    kept = ""
    while data := await inbox.read():
        kept = (kept + data.decode("latin-1")).lstrip(_BLANKS)
        while kept:
            try:
                value, end = json.JSONDecoder().raw_decode(kept)
            except ValueError:
                if len(kept) > _KEPT:
                    raise ClientGone("terminal sizes that are not JSON") from None
                break
            except RecursionError:
                raise ClientGone("terminal sizes that are not JSON") from None
            kept = kept[end:].lstrip(_BLANKS)
            if size := _size(value):
                yield size


def _size(untrusted: object) -> Size | None:
    if not isinstance(untrusted, dict):
        raise ClientGone("a terminal size that is no object")
    rows, columns = untrusted.get("Height"), untrusted.get("Width")
    for number in (rows, columns):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST:
            raise ClientGone("a terminal size without Width and Height")
    return Size(rows, columns) if rows and columns else None
