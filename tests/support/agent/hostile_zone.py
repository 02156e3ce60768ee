"""A zone of the fake with a hostile agent: the program sits between protectd and the agent.

``python -m tests.support.agent.hostile_zone DIRECTORY:ATTACK ...`` says ``hostile`` once all agents are
hostile, and runs until its input ends. It is a process of its own, as the CPUs of a guest are not protectd's.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protect.channel import frames
from protect.channel.frames import WINDOW, Frame, FrameDecoder, Side, Type
from tests.support.agent.decoding import feed
from tests.support.agent.zone_client import open_directory
from xenpod_proto.channel.v1 import channel_pb2 as pb

FORGOTTEN = 3_000_000_000
"""An output that was announced to protectd; protectd has given the output up, since no client wants it."""
STDIN = FORGOTTEN + 1
"""An input that was announced to protectd."""
READ = 1 << 18
BATCH = 1024
_HELD = 30.0


def directory_of(run_dir: Path, domain_id: int) -> Path:
    """The directory of a domain of the fake; the domain's number is the pid of its first process."""
    for pid in (run_dir / "fake/domains").glob("*/pid"):
        if pid.read_text().split()[0] == str(domain_id):
            return pid.parent
    raise LookupError(f"no domain has the process {domain_id}")


class Line:
    """A connection of protectd to a hostile agent."""

    def __init__(self, host: socket.socket, agent: socket.socket, zone: HostileZone) -> None:
        self._host, self._agent, self._zone = host, agent, zone
        self._sending = threading.Lock()
        self._asked: dict[int, str] = {}
        self._credit = threading.Condition()
        self._given_up = threading.Event()
        self.limits: dict[int, tuple[int, int]] = {}
        """The credit (consumed, limit) from protectd for each of the agent's outputs."""
        self.outputs: list[int] = []
        """Outputs of the zone's own processes."""
        self.ended = False

    def send(self, untrusted: bytes) -> None:
        """Send whole frames.  OSError: the connection has ended."""
        with self._sending:
            self._host.sendall(untrusted)

    def credited(self, stream: int, beyond: int) -> int:
        """Wait for credit beyond this offset: the limit.  OSError at the connection's end."""
        with self._credit:
            while self.limits.get(stream, (0, 0))[1] <= beyond:
                if self.ended or not self._credit.wait(_HELD):
                    raise OSError("no credit")
            return self.limits[stream][1]

    def leave(self) -> None:
        """Stop to answer, also on a new connection."""
        self._zone.stop()

    def hold(self, untrusted: bytes) -> None:
        """Send this, and then nothing more; the connection stays."""
        with self._sending:
            self._host.sendall(untrusted)
            threading.Event().wait()

    def end_of_ours(self) -> None:
        """Close our side alone."""
        self._host.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.ended = True
        for one in (self._host, self._agent):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the peer has closed the connection
        with self._credit:
            self._credit.notify_all()

    def from_host(self) -> None:
        decoder = FrameDecoder(Side.HOST)
        while untrusted := self._host.recv(READ):
            for frame in feed(decoder, untrusted):
                if not self._take(frame):
                    self._agent.sendall(frames.encode(frame))

    def _take(self, frame: Frame) -> bool:
        """Handle a frame of protectd; returns whether to hide it from the agent."""
        if frame.type is Type.CREDIT:
            if frame.fin and frame.stream == FORGOTTEN:
                self._given_up.set()
            elif not frame.fin:
                with self._credit:
                    self.limits[frame.stream] = frames.credit_values(frame)
                    self._credit.notify_all()
            # What we make of an output is none of the agent's business.
            return frame.stream >= FORGOTTEN or self._zone.attack in OWN_OUTPUT
        if frame.type is not Type.CALL:
            return False
        operation = pb.Request.FromString(frame.payload).WhichOneof("op") or ""
        self._asked[frame.stream] = operation
        if operation in SILENT.get(self._zone.attack, ()):
            return True
        answer = ANSWERS.get(self._zone.attack, {}).get(operation)
        if answer is not None:
            self.send(frames.encode(Frame(Type.REPLY, frame.stream, answer)))
        return answer is not None

    def from_agent(self) -> None:
        decoder = FrameDecoder(Side.AGENT)
        while untrusted := self._agent.recv(READ):
            for frame in feed(decoder, untrusted):
                if frame.type is Type.HELLO and self._zone.attack in GREETINGS:
                    self._zone.attacked.set()
                    self.send(GREETINGS[self._zone.attack])
                    continue
                listed = frame.type is Type.REPLY and self._asked.pop(frame.stream, "") == "list_processes"
                self.send(frames.encode(self._more(frame) if listed else frame))
                if listed:
                    threading.Thread(target=self._attack, daemon=True).start()

    def _more(self, listed: Frame) -> Frame:
        reply = pb.Reply.FromString(listed.payload)
        self.outputs = [process.created.stdout_stream for process in reply.processes.processes]
        created = pb.ProcessCreated(stdout_stream=FORGOTTEN, stdin_stream=STDIN)
        reply.processes.processes.add(process=pb.ProcessRef(container_id="none"), created=created)
        return Frame(Type.REPLY, listed.stream, reply.SerializeToString())

    def _attack(self) -> None:
        try:
            # Earlier, frames for the stream would break a rule.
            if not self._given_up.wait(_HELD):
                return
            self._zone.attacked.set()
            ATTACKS[self._zone.attack](self)
        except OSError:
            pass  # cut off


class HostileZone:
    """Takes the place of the agent in a domain's directory; the next connections are ours."""

    def __init__(self, directory: Path, attack: str) -> None:
        self.attack = attack
        self.connections = 0
        self.attacked = threading.Event()
        """Set once an attack has begun."""
        self._directory = directory
        self._lines: list[Line] = []
        self._listener = socket.socket(socket.AF_UNIX)
        os.rename(directory / "channel.sock", directory / "agent.sock")
        with open_directory(directory) as where:
            self._listener.bind(f"{where}/channel.sock")
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        # A new connection ends the current connection: protectd connects to this program.
        self._connected().close()

    def stop(self) -> None:
        """Stop answering protectd."""
        self._listener.close()
        for line in self._lines:
            line.close()

    def _connected(self) -> socket.socket:
        agent = socket.socket(socket.AF_UNIX)
        with open_directory(self._directory) as where:
            agent.connect(f"{where}/agent.sock")
        return agent

    def _accept(self) -> None:
        while True:
            try:
                host, _ = self._listener.accept()
                line = Line(host, self._connected(), self)
            except OSError:
                return  # stopped, or the zone has ended
            self.connections += 1
            self._lines = [line]
            for work in (line.from_host, line.from_agent):
                threading.Thread(target=_until_end, args=(line, work), daemon=True).start()


def _until_end(line: Line, work: Callable[[], None]) -> None:
    try:
        work()
    except OSError:
        pass  # a side has closed the connection
    finally:
        line.close()


def _flood(untrusted: Frame) -> Callable[[Line], None]:
    batch = frames.encode(untrusted) * BATCH

    def flood(line: Line) -> None:
        while True:
            line.send(batch)

    return flood


def crumbs(line: Line, content: bytes = b"\n") -> None:
    """Send a container's output byte by byte, as fast as protectd reads, which is legal for ever."""
    stream = line.outputs[0]
    limit = line.credited(stream, 0)
    at = line.limits[stream][0]
    while True:
        stop = min(limit, at + BATCH * len(content))
        step = len(content)
        line.send(
            b"".join(frames.encode(frames.data(stream, n, content)) for n in range(at, stop - step + 1, step))
        )
        at += (stop - at) // step * step
        limit = line.credited(stream, at + step - 1)


def events(line: Line) -> None:
    """Send as many events as are legal, for a container that does not exist."""
    exited = pb.ProcessExited(process=pb.ProcessRef(container_id="none"))
    raw = frames.encode(Frame(Type.EVENT, 0, pb.Event(process_exited=exited).SerializeToString()))
    line.send(raw * 4000)
    while True:
        time.sleep(0.05)
        line.send(raw * 10)


def _hang_up(line: Line) -> None:
    line.close()


def _once(untrusted: bytes) -> Callable[[Line], None]:
    return lambda line: line.send(untrusted)


def _raw(kind: int, stream: int, payload: bytes, *, flags: int = 0, zero: int = 0, length: int = -1) -> bytes:
    """A frame, legal or not (docs/channel.md)."""
    return _HEADER.pack(kind, flags, zero, stream, len(payload) if length < 0 else length) + payload


def _half_a_frame(line: Line) -> None:
    line.hold(_raw(Type.DATA, FORGOTTEN, b"", length=60_000))


def _half_close(line: Line) -> None:
    line.end_of_ours()


def _exits(line: Line) -> None:
    """Frames of foreign containers and execs, of its own container twice, and of invalid names."""
    line.send(b"".join(_exited(name, code) for name in ("good-w", "bad-w", "bad-w", ODD) for code in (0, 7)))


def _exited(container: str, code: int) -> bytes:
    exited = pb.ProcessExited(process=pb.ProcessRef(container_id=container), exit_code=code)
    return frames.encode(Frame(Type.EVENT, 0, pb.Event(process_exited=exited).SerializeToString()))


def _gone(line: Line) -> None:
    line.leave()


def _nothing(line: Line) -> None:
    """Do nothing, since the answers are hostile."""


def _field(number: int, content: bytes) -> bytes:
    size = len(content)
    length = b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


ODD = "\x1b[2J\r\n2026-01-01T00:00:00Z CRITICAL forged " + "x" * 2000
"""Text that would forge a line of a log, or a terminal's contents."""
LONG = ODD * 3
_HEADER = struct.Struct("<BBHII")


def _hello(**fields: Any) -> bytes:
    known: dict[str, Any] = {"version_min": 1, "version_max": 1, "boot_id": b"b" * 16}
    return _raw(Type.HELLO, 0, pb.Hello(**(known | fields)).SerializeToString())


GREETINGS: Mapping[str, bytes] = {
    "version 0": _hello(version_min=0, version_max=0),
    "a later version": _hello(version_min=2, version_max=2),
    "every version": _hello(version_min=0, version_max=0xFFFFFFFF),
    "no boot": _hello(boot_id=b""),
    "a long boot": _hello(boot_id=b"b" * 4000),
    "no greeting": _raw(Type.EVENT, 0, b""),
    "half a greeting": _hello()[:20],
}
"""Instead of the agent's own HELLO."""
LARGEST = 1 << 20
_ROW = pb.ContainerStats.DESCRIPTOR.fields_by_name["cpu_pressure"].number
_ROWS = _field(pb.Stats.CONTAINERS_FIELD_NUMBER, bytes([_ROW << 3 & 0x7F | 2 | 0x80, _ROW >> 4, 0]) * 600)

ATTACKS: Mapping[str, Callable[[Line], None]] = {
    "data": _flood(frames.data(FORGOTTEN, 0, b"x")),
    "large-data": _flood(frames.data(FORGOTTEN, 0, b"x" * 256)),
    "credit": _flood(frames.credit(STDIN, 0, WINDOW)),
    "fin": _flood(frames.credit(STDIN, 0, 0, fin=True)),
    "crumbs": crumbs,
    "pieces": lambda line: crumbs(line, b"x" * 64),
    "events": events,
    "hang-up": _hang_up,
    "gone": _gone,
    "half a frame": _half_a_frame,
    "half closed": _half_close,
    "exits": _exits,
    "errors": _nothing,
    "figures": _nothing,
    "a reply to nothing": _once(
        _raw(Type.REPLY, 4_000_000_000, pb.Reply(done=pb.Empty()).SerializeToString())
    ),
    "a call": _once(_raw(Type.CALL, 1, pb.Request().SerializeToString())),
    "a stream of its own": _once(_raw(Type.DATA, FORGOTTEN + 9, bytes(8) + b"x")),
    "credit for nothing": _once(_raw(Type.CREDIT, FORGOTTEN + 9, bytes(16))),
    "a second greeting": _once(_hello()),
    "a huge event": _once(_raw(Type.EVENT, 0, b"", length=4097)),
    "no event": _once(_raw(Type.EVENT, 0, b"\xff" * 64)),
    "a huge frame": _once(_raw(Type.DATA, FORGOTTEN, b"", length=0xFFFFFFFF)),
    "no data": _once(_raw(Type.DATA, FORGOTTEN, b"x")),
    "an unknown type": _once(_raw(200, 0, b"")),
    "reserved bits": _once(_raw(Type.EVENT, 0, b"", zero=1)),
    "unknown flags": _once(_raw(Type.DATA, FORGOTTEN, bytes(8) + b"x", flags=0x82)),
    "stream 0": _once(_raw(Type.DATA, 0, bytes(8) + b"x")),
    "silent": _nothing,
    "stats": _nothing,
    "rows": _nothing,
}
FLOODS = ("data", "large-data", "credit", "fin", "crumbs", "pieces", "events", "hang-up", "stats", "rows")
"""Attacks that run as long as they may; the remaining attacks are over at once, or are answers."""
LEGAL = ("crumbs", "pieces", "events", "hang-up", "rows")
"""Attacks that break no rule; only fair scheduling and bounds help."""
OWN_OUTPUT = ("crumbs", "pieces")
SILENT: Mapping[str, Sequence[str]] = {
    "silent": ("signal_process", "delete_container", "delete_exec", "exec_process", "get_stats", "get_facts"),
}
"""Calls that never get an answer."""


def _impossible() -> pb.Reply:
    """Frames of its own and of foreign containers, with the largest numbers, and without numbers."""
    reply = pb.Reply()
    for name in ("bad-w", "good-w", ODD[:100]):
        row = reply.stats.containers.add(id=name)
        for field in row.DESCRIPTOR.fields:
            if field.cpp_type == field.CPPTYPE_UINT64:
                setattr(row, field.name, 2**64 - 1)
            elif field.cpp_type == field.CPPTYPE_INT64:
                setattr(row, field.name, -(2**63))
        row.cpu_pressure.some_avg10, row.memory_pressure.some_avg60 = math.nan, math.inf
        row.io_pressure.full_avg300 = -1.0
    reply.stats.zone.timestamp_ns = -(2**63)
    reply.stats.zone.cpu_usage_ns = 2**64 - 1
    reply.stats.zone.interfaces.add(name="../" + ODD[:20], rx_bytes=2**64 - 1)
    return reply


ANSWERS: Mapping[str, Mapping[str, bytes]] = {
    "stats": {
        "get_stats": _field(
            pb.Reply.STATS_FIELD_NUMBER, _field(pb.Stats.CONTAINERS_FIELD_NUMBER, b"") * (LARGEST // 2 - 8)
        )
    },
    "errors": {
        name: pb.Reply(error=pb.Error(code=2**31 - 1, message=LONG)).SerializeToString()
        for name in ("exec_process", "signal_process", "get_stats", "get_facts")
    },
    "figures": {"get_stats": _impossible().SerializeToString()},
    "rows": {"get_stats": _field(pb.Reply.STATS_FIELD_NUMBER, _ROWS * pb.LIMIT_CONTAINERS)},
}


def main() -> None:
    zones = [
        HostileZone(Path(place), attack) for place, _, attack in (one.rpartition(":") for one in sys.argv[1:])
    ]
    for zone in zones:
        zone.attacked.wait()
    sys.stdout.write("hostile\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
