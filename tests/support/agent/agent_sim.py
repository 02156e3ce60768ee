"""An agent in memory: the far end of a ``Link``, strict about the host's messages.

``SimAgent`` shares only the frame codec with ``protect.channel``. Its accounts are its own: a mistake in the
host's accounts does not cancel out. ``faults`` collects the host's mistakes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable

from protect.channel import frames
from protect.channel.frames import WINDOW, Frame, FrameDecoder, Side, Type, encode
from protect.model.errors import ProtocolViolation
from tests.support.agent.decoding import feed
from tests.support.agent.memory_transport import MemoryTransport, transport_pair
from tests.support.agent.sim_streams import SimInput, SimOutput
from xenpod_proto.channel.v1 import channel_pb2 as pb


class SimAgent:
    """An agent whose processes are driven by the test: ``write``, ``end``, ``exit``."""

    def __init__(self, chunk: Callable[[], int] | None = None) -> None:
        """``chunk``: sizes of the pieces in which our bytes reach the host."""
        self.boot_id = os.urandom(16)
        self.outputs: dict[int, SimOutput] = {}
        self.inputs: dict[int, SimInput] = {}
        self.processes: dict[tuple[str, str], pb.Process] = {}
        self.dialed: list[pb.Dialed] = []
        self.stats = pb.Stats()
        """The answer to get_stats."""
        self.requests: list[pb.Request] = []
        self.delivered: list[str] = []
        """Operations of received calls, also while the agent does not read the calls."""
        self.faults: list[str] = []
        self.connections = 0
        self.unanswered: set[str] = set()
        """Operations without an answer."""
        self.errors: dict[str, pb.Error] = {}
        """Operations that fail."""
        self.file_volumes = True
        self.anonymous_volumes = True
        self.resizes = True
        self.steps: list[pb.StepTime] = []
        """Reported use of CPU time, in the greeting and in each reply."""
        self.size = pb.GuestSize()
        """The answer to resize_zone."""
        self.deaf = 0
        """Number of requests for CPUs until the kernel knows of its new CPUs."""
        self.ahead_ns = 0
        """Error of the clock."""
        self.clock_lag: Callable[[], float] = lambda: 0.0
        """Duration of the next answer about the clock, in seconds."""
        self.device_in_use = False
        self.left = b""
        """The answer to read_file."""
        self._chunk = chunk
        self._last_stream = 0
        self._transport: MemoryTransport | None = None
        self._task: asyncio.Task[None] | None = None
        self._out: deque[bytes] = deque()
        self._work = asyncio.Event()
        self.available = asyncio.Event()
        """Cleared: dial waits."""
        self.available.set()
        self.reading = asyncio.Event()
        """Cleared: the agent does not read the host's messages."""
        self.reading.set()
        self.greeting: Callable[[SimAgent, pb.Hello], bytes] = lambda agent, hello: agent.hello()

    # -- actions of a toolstack

    async def dial(self) -> MemoryTransport:
        """A new connection, which replaces the current connection."""
        await self.available.wait()
        await self.stop()
        host, ours = transport_pair()
        self._transport = ours
        self.connections += 1
        self._task = asyncio.create_task(self._serve(ours))
        return host

    async def stop(self) -> None:
        """End the current connection."""
        self.cut()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._transport = self._task = None

    def cut(self) -> None:
        """Break the current connection, also in the middle of a call."""
        if self._transport is not None:
            self._transport.cut()

    def reboot(self) -> None:
        """Become another agent: nothing of the old agent is left."""
        self.cut()
        self.boot_id = os.urandom(16)
        self.outputs.clear()
        self.inputs.clear()
        self.processes.clear()
        self.dialed.clear()
        self._last_stream = 0

    # -- actions of the processes

    def write(self, stream: int, data: bytes) -> None:
        self.outputs[stream].written += data
        self._work.set()

    def end(self, stream: int) -> None:
        self.outputs[stream].ended = True
        self._work.set()

    def exit(self, container_id: str, code: int = 0, exec_id: str = "") -> None:
        process = self.processes[container_id, exec_id]
        process.state = pb.PROCESS_STATE_EXITED
        process.exited.CopyFrom(pb.ProcessExited(process=process.process, exit_code=code, exited_at_ns=1))
        self.send(Frame(Type.EVENT, 0, pb.Event(process_exited=process.exited).SerializeToString()))

    def resume_reading(self, stream: int) -> None:
        self.inputs[stream].reading = True
        self._drain_input(stream)

    # Frames.

    def hello(self) -> bytes:
        message = pb.Hello(version_min=1, version_max=1, boot_id=self.boot_id)
        message.agent_version, message.kernel_release = "sim", "6.1"
        message.file_volumes, message.resizes = self.file_volumes, self.resizes
        message.anonymous_volumes = self.anonymous_volumes
        message.steps.extend(self.steps)
        return encode(Frame(Type.HELLO, 0, message.SerializeToString()))

    def send(self, frame: Frame) -> None:
        self.raw(encode(frame))

    def raw(self, data: bytes) -> None:
        """Send bytes, legal or not."""
        self._out.append(data)
        self._work.set()

    @property
    def backlog(self) -> bool:
        """Whether frames wait to be sent."""
        return bool(self._out)

    def new_stream(self) -> int:
        self._last_stream += 1
        return self._last_stream

    async def _serve(self, transport: MemoryTransport) -> None:
        self._out.clear()
        decoder = FrameDecoder(Side.HOST)
        for output in self.outputs.values():
            output.live, output.fin_sent = False, False
        greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        writer = asyncio.create_task(self._writer(transport, greeted))
        try:
            while data := await transport.read(1 << 18):
                came = list(feed(decoder, data))
                self.delivered += [_operation(frame) for frame in came if frame.type is Type.CALL]
                await self.reading.wait()
                for frame in came:
                    self._take(frame, greeted)
        except ProtocolViolation as error:
            self.faults.append(error.cause)
        finally:
            writer.cancel()
            transport.cut(drop=False)

    async def _writer(self, transport: MemoryTransport, greeted: asyncio.Future[None]) -> None:
        await greeted
        while True:
            await self._work.wait()
            self._work.clear()
            while self._out:
                await self._send_chunks(transport, self._out.popleft())
            while frame := self._next_data():
                await self._send_chunks(transport, encode(frame))
                while self._out:
                    await self._send_chunks(transport, self._out.popleft())

    async def _send_chunks(self, transport: MemoryTransport, data: bytes) -> None:
        at = 0
        while at < len(data):
            size = self._chunk() if self._chunk else len(data)
            await transport.write(data[at : at + size])
            at += size

    def _next_data(self) -> Frame | None:
        for number, output in list(self.outputs.items()):
            if output.forgotten or not output.live or output.fin_sent:
                continue
            stop = min(len(output.written), output.limit, output.sent + 16_384)
            fin = output.ended and stop == len(output.written)
            if stop > output.sent or fin:
                content = bytes(output.written[output.sent : stop])
                frame = frames.data(number, output.sent, content, fin)
                output.sent, output.fin_sent = stop, fin
                # In turn: this stream goes to the end of the queue.
                self.outputs[number] = self.outputs.pop(number)
                return frame
        return None

    def _take(self, frame: Frame, greeted: asyncio.Future[None]) -> None:
        if frame.type is Type.HELLO:
            if greeted.done():
                self.faults.append("second HELLO")
                return
            self._out.append(self.greeting(self, pb.Hello.FromString(frame.payload)))
            for number, source in self.inputs.items():
                if not source.forgotten:
                    source.next, source.fin = len(source.read), False
                    source.waiting.clear()
                    source.limit = source.next + WINDOW
                    self.send(frames.credit(number, source.next, source.limit))
            greeted.set_result(None)
            self._work.set()
        elif not greeted.done():
            self.faults.append(f"{frame.type.name} before HELLO")
        elif frame.type is Type.CALL:
            self._call(frame)
        elif frame.type is Type.CREDIT:
            self._credit(frame)
        else:
            self._data(frame)

    def _credit(self, frame: Frame) -> None:
        output = self.outputs.get(frame.stream)
        if output is None or output.forgotten:
            self.faults += [] if output else [f"CREDIT on stream {frame.stream}"]
            return
        if frame.fin:
            output.forgotten = True
            output.given_up = not output.fin_sent
            return
        consumed, limit = frames.credit_values(frame)
        if consumed < output.consumed or (output.live and (limit < output.limit or consumed > output.sent)):
            self.faults.append(f"CREDIT {consumed}..{limit} where {output}")
        output.consumed, output.limit = consumed, limit
        if not output.live:
            output.live, output.sent = True, consumed
        self._work.set()

    def _data(self, frame: Frame) -> None:
        source = self.inputs.get(frame.stream)
        if source is None:
            self.faults.append(f"DATA on stream {frame.stream}")
            return
        if source.forgotten:
            return
        offset, content = frames.data_offset(frame), frame.payload[8:]
        if offset != source.next or offset + len(content) > source.limit or source.fin:
            self.faults.append(f"DATA at {offset} of {len(content)} where {source.next} to {source.limit}")
        source.next += len(content)
        source.waiting += content
        source.fin = frame.fin
        self._drain_input(frame.stream)

    def _drain_input(self, number: int) -> None:
        source = self.inputs[number]
        if not source.reading:
            return
        source.read += source.waiting
        source.waiting.clear()
        if source.fin:
            source.eof = source.forgotten = True
            self.send(frames.credit(number, len(source.read), len(source.read), fin=True))
        elif len(source.read) + WINDOW - source.limit >= 16_384:
            source.limit = len(source.read) + WINDOW
            self.send(frames.credit(number, len(source.read), source.limit))

    # Calls.

    def _call(self, frame: Frame) -> None:
        request = pb.Request.FromString(frame.payload)
        self.requests.append(request)
        operation = _operation(frame)
        if operation in self.unanswered:
            return
        if operation in self.errors:
            reply = pb.Reply(error=self.errors[operation])
        elif operation == "create_container":
            create = request.create_container
            reply = self._create(pb.ProcessRef(container_id=create.id), create.tty, create.stdin)
        elif operation == "exec_process":
            execute = request.exec_process
            reply = self._create(execute.process, execute.tty, execute.stdin)
        elif operation == "dial":
            reply = pb.Reply(dialed=self._dial())
        elif operation == "sync_clock":
            self.ahead_ns += request.sync_clock.add_ns
            now = time.time_ns() + self.ahead_ns
            reply = pb.Reply(clock=pb.ClockReading(realtime_ns=now))
            if lag := self.clock_lag():
                late = Frame(Type.REPLY, frame.stream, reply.SerializeToString())
                asyncio.get_running_loop().call_later(lag, self.send, late)
                return
        elif operation == "find_device":
            there = pb.DeviceFound(major=202, minor=16, size_bytes=1 << 20, in_use=self.device_in_use)
            reply = pb.Reply(device=pb.DeviceFound() if request.find_device.gone else there)
        elif operation == "read_file":
            reply = pb.Reply(content=pb.FileContent(content=self.left))
        elif operation == "list_processes":
            listed = pb.ProcessList(processes=list(self.processes.values()), connections=self.dialed)
            reply = pb.Reply(processes=listed)
        elif operation == "resize_zone":
            self._start_cpus(request.resize_zone.cpus)
            reply = pb.Reply(size=self.size)
        elif operation in ("get_stats", "get_facts"):
            facts = pb.Reply(facts=pb.Facts(pid1="init"))
            reply = facts if operation == "get_facts" else pb.Reply(stats=self.stats)
        else:
            if operation == "delete_container":
                self._delete(request.delete_container.id)
            elif operation == "delete_exec":
                ref = request.delete_exec.process
                self._forget([key for key in self.processes if key == (ref.container_id, ref.exec_id)])
            reply = pb.Reply(done=pb.Empty())
        reply.steps.extend(self.steps)
        self.send(Frame(Type.REPLY, frame.stream, reply.SerializeToString()))

    def _start_cpus(self, wanted: int) -> None:
        if self.deaf and wanted > self.size.cpus:
            self.deaf -= 1
            if not self.deaf:
                self.size.cpus = wanted

    def _create(self, ref: pb.ProcessRef, tty: bool, stdin: bool) -> pb.Reply:
        key = (ref.container_id, ref.exec_id)
        if key in self.processes:
            return pb.Reply(error=pb.Error(code=6, message=f"create: {ref.container_id}: exists"))
        created = pb.ProcessCreated(pid=100 + len(self.processes), stdout_stream=self.new_stream())
        self.outputs[created.stdout_stream] = SimOutput()
        if not tty:
            created.stderr_stream = self.new_stream()
            self.outputs[created.stderr_stream] = SimOutput()
        if stdin:
            created.stdin_stream = self.new_stream()
            self.inputs[created.stdin_stream] = SimInput()
        state = pb.PROCESS_STATE_RUNNING if ref.exec_id else pb.PROCESS_STATE_CREATED
        self.processes[key] = pb.Process(process=ref, state=state, created=created)
        return pb.Reply(created=created)

    def _dial(self) -> pb.Dialed:
        dialed = pb.Dialed(in_stream=self.new_stream(), out_stream=self.new_stream())
        self.inputs[dialed.in_stream], self.outputs[dialed.out_stream] = SimInput(), SimOutput()
        self.dialed.append(dialed)
        return dialed

    def _delete(self, container_id: str) -> None:
        self._forget([key for key in self.processes if key[0] == container_id])

    def _forget(self, keys: list[tuple[str, str]]) -> None:
        """Forget processes without telling the host of their streams."""
        for key in keys:
            created = self.processes.pop(key).created
            for number in (created.stdout_stream, created.stderr_stream):
                if number:
                    self.outputs[number].forgotten = True
            if created.stdin_stream:
                self.inputs[created.stdin_stream].forgotten = True


def _operation(call: Frame) -> str:
    return pb.Request.FromString(call.payload).WhichOneof("op") or ""
