"""A client's standard streams for exec and attach, over SPDY or WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cri.streaming.process.exit_status import ExitStatus
from cri.streaming.transport.channels import SubProtocol, WebSocketChannels
from cri.streaming.transport.inbox import Inbox
from cri.streaming.transport.session import SpdySession, SpdyStream
from cri.streaming.transport.websocket import WebSocket
from cri.streaming.transport.wire import ClientGone, ClientWire

FRAME_BYTES = 64 * 1024
"""Bytes of output in one frame, at most."""

SPDY_PROTOCOLS: Mapping[str, SubProtocol] = {
    "": SubProtocol(1),
    "channel.k8s.io": SubProtocol(1),
    **{f"v{n}.channel.k8s.io": SubProtocol(n) for n in range(1, 6)},
}

_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE = range(5)


@dataclass(frozen=True, slots=True)
class Wants:
    """The requested streams."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


class Command(Protocol):
    """One client's standard streams."""

    @property
    def stdin(self) -> Inbox | None: ...

    @property
    def resizes(self) -> Inbox | None: ...

    async def run(self) -> None:
        """Read from the client until it is gone; ClientGone if the client broke off."""
        ...

    async def ready(self) -> None:
        """Return once the client has opened every requested stream; called once."""
        ...

    async def stdout(self, data: bytes) -> None: ...

    async def stderr(self, data: bytes) -> None: ...

    async def end(self, status: ExitStatus) -> None:
        """Send the status, and end all streams."""
        ...


class SpdyCommand:
    """A SPDY stream for each; the header ``streamtype`` names the stream."""

    def __init__(self, wire: ClientWire, protocol: SubProtocol, wants: Wants) -> None:
        # Clients of v1 and v2 do not know resizing.
        resizes = wants.tty and protocol.version >= 3
        names = {
            "error": True,
            "stdin": wants.stdin,
            "stdout": wants.stdout,
            "stderr": wants.stderr and not wants.tty,
            "resize": resizes,
        }
        self._wanted = frozenset(name for name, wanted in names.items() if wanted)
        self._streams: dict[str, SpdyStream] = {}
        self._complete = asyncio.Event()
        self._protocol = protocol
        # A refused stream is forgotten at once: the wanted streams are the maximum.
        self._session = SpdySession(wire, self._accept, streams=len(self._wanted))

    @property
    def stdin(self) -> Inbox | None:
        return self._input("stdin")

    @property
    def resizes(self) -> Inbox | None:
        return self._input("resize")

    async def run(self) -> None:
        await self._session.run()

    async def ready(self) -> None:
        """Wait for all streams, then send a blank on the error stream.

        Clients take an empty error stream for success, even if the stream was cut off.  The status is JSON,
        and JSON may begin with a blank; a blank alone is no status.  Sub-protocols before v4 have no status:
        their clients cannot learn of a server that dies.
        """
        await self._complete.wait()
        error = self._streams["error"]
        if self._protocol.statuses and not error.local_done:
            await error.write(b" ")

    async def stdout(self, data: bytes) -> None:
        await self._write("stdout", data)

    async def stderr(self, data: bytes) -> None:
        await self._write("stderr", data)

    async def end(self, status: ExitStatus) -> None:
        error = self._streams.get("error")
        if error is not None and not error.local_done:
            # Outputs end first: v1 clients stop at the error stream's end.
            for name in ("stdout", "stderr"):
                if stream := self._streams.get(name):
                    await stream.finish()
            await error.write(status.to_json() if self._protocol.statuses else status.to_text())
            await error.finish()
        await self._session.goodbye()

    def _accept(self, stream: SpdyStream) -> bool:
        kind = stream.header("streamtype")
        if kind not in self._wanted or kind in self._streams:
            return False
        self._streams[kind] = stream
        if len(self._streams) == len(self._wanted):
            self._complete.set()
        return True

    def _input(self, name: str) -> Inbox | None:
        stream = self._streams.get(name)
        return stream.input if stream else None

    async def _write(self, name: str, data: bytes) -> None:
        """Write; output to a stream reset by the client is dropped, as in the kubelet's server."""
        stream = self._streams.get(name)
        if stream is None:
            return
        for begin in range(0, len(data), FRAME_BYTES):
            if stream.local_done:
                return
            await stream.write(data[begin : begin + FRAME_BYTES])


class ChannelCommand:
    """Channels 0 to 4 of one WebSocket connection."""

    def __init__(self, socket: WebSocket, protocol: SubProtocol, wants: Wants) -> None:
        numbers = {_STDIN: wants.stdin, _RESIZE: wants.tty}
        readable = frozenset(number for number, wanted in numbers.items() if wanted)
        self._channels = WebSocketChannels(socket, protocol, readable)
        self._socket = socket
        self._protocol = protocol
        self._wants = wants

    @property
    def stdin(self) -> Inbox | None:
        return self._channels.inboxes.get(_STDIN)

    @property
    def resizes(self) -> Inbox | None:
        return self._channels.inboxes.get(_RESIZE)

    async def run(self) -> None:
        await self._channels.run()

    async def ready(self) -> None:
        """Begin with an empty message, as the kubelet's server does: some clients wait for a message."""
        first = _STDOUT if self._wants.stdout else _STDERR if self._wants.stderr else _ERROR
        await self._channels.send(first, b"")

    async def stdout(self, data: bytes) -> None:
        if self._wants.stdout:
            await self._channels.send(_STDOUT, data)

    async def stderr(self, data: bytes) -> None:
        if self._wants.stderr:
            await self._channels.send(_STDERR, data)

    async def end(self, status: ExitStatus) -> None:
        text = status.to_json() if self._protocol.statuses else status.to_text()
        if text:
            await self._channels.send(_ERROR, text)
        for inbox in self._channels.inboxes.values():
            inbox.discard()
        with contextlib.suppress(ClientGone):
            await self._socket.goodbye()
