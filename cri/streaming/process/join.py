"""A client's standard streams joined to a process's."""

from __future__ import annotations

import asyncio
from typing import Protocol

from cri.streaming.process.command import Command
from cri.streaming.process.resize import sizes
from cri.streaming.race import first_of
from cri.streaming.transport.inbox import Inbox
from cri.zones.process import Message, Process


class Sink(Protocol):
    """Takes the client's input."""

    async def stdin(self, data: bytes) -> None: ...

    async def stdin_eof(self) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...


async def join(process: Process[Message], command: Command, *, stdin: bool, tty: bool) -> int:
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
