"""The host's side of a zone's channel, frame by frame, for tests: no production code above the codec."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protect.channel import frames
from protect.channel.frames import Frame, Side, Type
from tests.support.agent.decoding import feed
from tests.support.agent.zone_specs import creation, process_json
from xenpod_proto.channel.v1 import channel_pb2 as pb

DEADLINE = 60.0


class Failed(Exception):
    """The agent answered a call with an Error."""

    def __init__(self, error: pb.Error) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.code = error.code
        self.message = error.message
        self.cannot_start = error.cannot_start


class Closed(Exception):
    """The agent closed the connection."""


@dataclass
class Stream:
    """An output stream as the host sees the stream; ``take`` is False while the host gives no credit."""

    number: int
    data: bytearray = field(default_factory=bytearray)
    consumed: int = 0
    ended: bool = False
    take: bool = True


class Client:
    """The host's side of one connection, which checks the agent's frames against the rules."""

    def __init__(
        self,
        path: Path,
        hello: bool = True,
        streams: dict[int, Stream] | None = None,
        patience: float = DEADLINE,
    ) -> None:
        self.patience = patience
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(patience)
        with open_directory(path.parent) as where:
            self.socket.connect(f"{where}/{path.name}")
        self.decoder = frames.FrameDecoder(Side.AGENT)
        self.inbox: deque[Frame] = deque()
        self.replies: dict[int, pb.Reply] = {}
        self.events: list[pb.ProcessExited] = []
        self.credits: dict[int, tuple[int, int, bool]] = {}
        self.streams: dict[int, Stream] = {} if streams is None else streams
        self.sent: dict[int, int] = {}
        self.call_id = 0
        self.hello: pb.Hello | None = None
        if hello:
            self.hello = self.greet()

    def send(self, frame: Frame) -> None:
        self.socket.sendall(frames.encode(frame))

    def greet(self, low: int = 1, high: int = 1) -> pb.Hello:
        hello = pb.Hello(version_min=low, version_max=high, zone_id="test")
        self.send(Frame(Type.HELLO, 0, hello.SerializeToString()))
        frame = self.next_frame()
        assert frame.type is Type.HELLO
        return pb.Hello.FromString(frame.payload)

    def next_frame(self) -> Frame:
        while not self.inbox:
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError as reset:
                raise Closed from reset
            if not data:
                raise Closed
            self.inbox.extend(feed(self.decoder, data))
        return self.inbox.popleft()

    def step(self) -> None:
        """Take and handle one frame."""
        frame = self.next_frame()
        if frame.type is Type.REPLY:
            self.replies[frame.stream] = pb.Reply.FromString(frame.payload)
        elif frame.type is Type.EVENT:
            self.events.append(pb.Event.FromString(frame.payload).process_exited)
        elif frame.type is Type.CREDIT:
            self.credits[frame.stream] = (*frames.credit_values(frame), frame.fin)
        else:
            assert frame.type is Type.DATA
            self.data(frame)

    def data(self, frame: Frame) -> None:
        stream = self.streams.setdefault(frame.stream, Stream(frame.stream))
        content = frame.payload[frames.OFFSET.size :]
        assert frames.data_offset(frame) == len(stream.data), "DATA at another offset"
        assert len(content) <= frames.DATA_TURN
        stream.data += content
        assert len(stream.data) <= stream.consumed + frames.WINDOW, "DATA beyond the credit"
        stream.ended = frame.fin
        if stream.take:
            self.grant(stream)

    def grant(self, stream: Stream) -> None:
        stream.consumed = len(stream.data)
        limit = stream.consumed + frames.WINDOW
        # An agent that has gone may have left more to read.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send(frames.credit(stream.number, stream.consumed, limit, fin=stream.ended))

    def until(self, condition: Callable[[], bool], what: str = "condition") -> None:
        deadline = time.monotonic() + self.patience
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come"
            self.step()

    def has(self, stream: int, part: bytes) -> bool:
        """Whether the output until now has this part."""
        return stream in self.streams and part in self.streams[stream].data

    def begin(self, **op: Any) -> int:
        self.call_id += 1
        request = pb.Request(**op)
        self.send(Frame(Type.CALL, self.call_id, request.SerializeToString()))
        return self.call_id

    def finish(self, call: int) -> pb.Reply:
        self.until(lambda: call in self.replies, f"reply {call}")
        reply = self.replies.pop(call)
        if reply.HasField("error"):
            raise Failed(reply.error)
        return reply

    def call(self, **op: Any) -> pb.Reply:
        return self.finish(self.begin(**op))

    def exited(self, container: str, exec_id: str = "") -> pb.ProcessExited:
        """Wait for the exit event of a process."""

        def found() -> list[pb.ProcessExited]:
            return [
                e for e in self.events if (e.process.container_id, e.process.exec_id) == (container, exec_id)
            ]

        self.until(lambda: bool(found()), f"exit of {container} {exec_id}")
        return found()[0]

    def output(self, number: int) -> bytes:
        """Wait for the end of a stream: all bytes of the stream."""
        stream = self.streams.setdefault(number, Stream(number))
        self.until(lambda: stream.ended, f"end of stream {number}")
        return bytes(stream.data)

    def write(self, number: int, data: bytes, fin: bool = False) -> None:
        """Write to an input stream, as credit allows."""
        self.credits.setdefault(number, (0, frames.WINDOW, False))
        while data or fin:
            at = self.sent.get(number, 0)
            if data:
                self.until(lambda at=at: self.credits[number][1] > at, "credit")  # type: ignore[misc]
            left = max(0, min(self.credits[number][1] - at, 32768))
            part, data = data[:left], data[left:]
            last = fin and not data
            self.send(frames.data(number, at, part, fin=last))
            self.sent[number] = at + len(part)
            fin = fin and not last

    def start(self, name: str, *args: str, **options: Any) -> pb.ProcessCreated:
        """Create and start a container of the image in xvda."""
        created = self.call(create_container=creation(name, *args, **options)).created
        self.call(start_container=pb.StartContainer(id=name))
        return created

    def execute(
        self, name: str, exec_id: str, *args: str, tty: bool = False, **options: bool
    ) -> pb.ProcessCreated:
        request = pb.ExecProcess(
            process=pb.ProcessRef(container_id=name, exec_id=exec_id),
            process_json=json.dumps(process_json(*args, tty=tty)).encode(),
            tty=tty,
            **options,
        )
        return self.call(exec_process=request).created

    def listed(self) -> dict[tuple[str, str], pb.Process]:
        """List all processes, by container and exec."""
        processes = self.call(list_processes=pb.ListProcesses()).processes.processes
        return {(p.process.container_id, p.process.exec_id): p for p in processes}

    def delete(self, name: str) -> None:
        self.call(delete_container=pb.DeleteContainer(id=name))

    def close(self) -> None:
        self.socket.close()


@contextmanager
def open_directory(path: Path) -> Iterator[str]:
    """A short name for a directory: socket addresses have room for 107 bytes only."""
    fd = os.open(path, os.O_PATH)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
