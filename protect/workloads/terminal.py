"""What a caller of exec or attach sends: stdin, its end, the terminal's size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from daemonkit.faults import Invalid
from protect.model.ports import AgentLink, Input
from protect.state.node import Node
from xenpod_proto.channel.v1 import channel_pb2

_SIZE_LIMIT = 0xFFFF
_PIECE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Stdin:
    data: bytes


@dataclass(frozen=True, slots=True)
class StdinEnd:
    """No more stdin comes."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Of the terminal, in characters."""

    rows: int
    columns: int


Command = Stdin | StdinEnd | Resize


async def feed(
    node: Node,
    link: AgentLink,
    process: channel_pb2.ProcessRef,
    stdin: Input | None,
    commands: AsyncIterator[Command],
    *,
    close_stdin: bool,
) -> None:
    """Carry out commands until there are none; back-pressured by the process."""
    async for command in commands:
        match command:
            case Stdin(data):
                if stdin is None:
                    raise Invalid("write stdin", process.container_id, "it has no stdin")
                for begin in range(0, len(data), _PIECE):
                    await stdin.write(data[begin : begin + _PIECE])
            case StdinEnd():
                break
            case Resize(rows, columns):
                await _resize(node, link, process, rows, columns)
    if stdin is not None and close_stdin:
        await stdin.finish()
    # A terminal is resized after the end of its stdin, too.
    async for command in commands:
        if isinstance(command, Resize):
            await _resize(node, link, process, command.rows, command.columns)


async def _resize(
    node: Node, link: AgentLink, process: channel_pb2.ProcessRef, rows: int, columns: int
) -> None:
    if not (0 < rows <= _SIZE_LIMIT and 0 < columns <= _SIZE_LIMIT):
        raise Invalid("resize terminal", process.container_id, f"{rows} by {columns} is not a size")
    size = channel_pb2.ResizeTerminal(process=process, rows=rows, columns=columns)
    await link.call(channel_pb2.Request(resize_terminal=size), node.config.timeouts.call)
