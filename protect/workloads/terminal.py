"""Passes on the input of exec and attach: stdin, end of stdin, size of the terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from daemonkit.faults import Invalid
from protect.agent.agent_client import AgentClient
from protect.model.ports import Input
from protect.model.process import ProcessName

_SIZE_LIMIT = 0xFFFF
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Stdin:
    data: bytes


@dataclass(frozen=True, slots=True)
class StdinEnd:
    """The end of stdin."""


@dataclass(frozen=True, slots=True)
class Resize:
    """A new size of the terminal, in characters."""

    rows: int
    columns: int


Command = Stdin | StdinEnd | Resize


async def feed(
    agent: AgentClient,
    process: ProcessName,
    stdin: Input | None,
    commands: AsyncIterator[Command],
    *,
    close_stdin: bool,
    on_end: Callable[[], None] = lambda: None,
) -> None:
    """Carry out commands until the last, no faster than the process reads.

    ``on_end`` is called at the end of the caller's input, after the process has all of the input.
    """
    ended = False
    async for command in commands:
        match command:
            case Stdin(data):
                if stdin is None:
                    raise Invalid("write stdin", process.container_id, "it has no stdin")
                for begin in range(0, len(data), _CHUNK_BYTES):
                    await stdin.write(data[begin : begin + _CHUNK_BYTES])
            case StdinEnd():
                ended = True
                break
            case Resize(rows, columns):
                await _resize(agent, process, rows, columns)
    if stdin is not None and close_stdin:
        await stdin.finish()
    if ended:
        on_end()
    # A terminal can be resized even after the end of stdin.
    async for command in commands:
        if isinstance(command, Resize):
            await _resize(agent, process, command.rows, command.columns)


async def _resize(agent: AgentClient, process: ProcessName, rows: int, columns: int) -> None:
    if not (0 < rows <= _SIZE_LIMIT and 0 < columns <= _SIZE_LIMIT):
        raise Invalid("resize terminal", process.container_id, f"{rows} by {columns} is not a size")
    await agent.resize_terminal(process, rows, columns)
