"""Copy streams: a client's standard streams to a process's and back, and its terminal's sizes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Never

from cri.streaming.process.command import Command
from cri.streaming.transport.inbox import Inbox
from cri.streaming.transport.wire import ClientGone
from cri.zones.process import Message, ProcessStreams
from daemonkit.tasks import gather, race

_KEPT = 4096
"""Characters of an incomplete object that are kept."""
_MOST = 0xFFFF
_BLANKS = " \t\r\n"


async def copy_streams(process: ProcessStreams[Message], command: Command, *, stdin: bool, tty: bool) -> int:
    """Copy until the process ends; its exit code.  Faults of the process; ClientGone.

    ``stdin`` and ``tty`` say what the process has; what a client sends beyond that is dropped.
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
    """Copy input; never returns, since the end of input is not the end of the process."""
    if command.stdin is not None and not stdin:
        command.stdin.discard()
    await gather(
        _copy_stdin(process, command.stdin if stdin else None),
        _copy_sizes(process, command.resizes if tty else None),
    )
    await asyncio.Event().wait()
    raise AssertionError("an event that nobody sets was set")


async def _copy_stdin(process: ProcessStreams[Message], inbox: Inbox | None) -> None:
    if inbox is None:
        return
    while data := await inbox.read():
        await process.stdin(data)
    await process.stdin_eof()


async def _copy_sizes(process: ProcessStreams[Message], inbox: Inbox | None) -> None:
    if inbox is None:
        return
    async for size in sizes(inbox):
        await process.resize(size.rows, size.columns)


@dataclass(frozen=True, slots=True)
class Size:
    """Of a terminal, in characters."""

    rows: int
    columns: int


async def sizes(inbox: Inbox) -> AsyncIterator[Size]:
    """Parse terminal sizes, JSON objects one after the other; ClientGone for anything else.

    Sizes of 0 by 0 are skipped: clients send them when their own output is no terminal.
    """
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
