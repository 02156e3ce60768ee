"""Golden frames, shared by C and Python tests (``python -m tests.support.agent.golden_frames`` writes them).

Each entry is a frame in its ``direction``. ``error`` is null for a legal frame, else the reason why a
receiver must close the connection. A frame with a wrong header may have no payload in ``hex``.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from xenpod_proto.channel.v1 import channel_pb2 as pb

PATH = Path(__file__).parents[2] / "data" / "golden-frames.json"
HELLO, CALL, REPLY, EVENT, DATA, CREDIT = range(1, 7)


def _entry(
    name: str,
    direction: str,
    kind: int,
    stream: int,
    payload: bytes = b"",
    *,
    flags: int = 0,
    zero: int = 0,
    length: int | None = None,
    error: str | None = None,
) -> dict[str, Any]:
    declared = len(payload) if length is None else length
    header = struct.pack("<BBHII", kind, flags, zero, stream, declared)
    return {
        "name": name,
        "direction": direction,
        "hex": (header + payload).hex(),
        "type": kind,
        "flags": flags,
        "stream": stream,
        "payload_hex": payload.hex(),
        "error": error,
    }


def _at(offset: int, content: bytes = b"") -> bytes:
    return struct.pack("<Q", offset) + content


def _credit(consumed: int, limit: int) -> bytes:
    return struct.pack("<QQ", consumed, limit)


def _message(message: Any) -> bytes:
    raw: bytes = message.SerializeToString(deterministic=True)
    return raw


def _legal_control() -> list[dict[str, Any]]:
    process = pb.ProcessRef(container_id="c1")
    agent = pb.Hello(version_min=1, version_max=1, boot_id=bytes(range(16)), agent_version="0.1.0")
    agent.kernel_release, agent.hypervisor_type = "6.1.0", "xen"
    created = pb.ProcessCreated(stdin_stream=1, stdout_stream=2, stderr_stream=3, pid=42)
    exited = pb.ProcessExited(process=process, exit_code=137, oom_killed=True)
    error = pb.Error(code=5, message="start container: c1: no such container")
    rows: list[tuple[str, str, int, int, Any]] = [
        ("hello-host", "host", HELLO, 0, pb.Hello(version_min=1, version_max=1, zone_id="z1")),
        ("hello-agent", "agent", HELLO, 0, agent),
        ("call-start", "host", CALL, 7, pb.Request(start_container=pb.StartContainer(id="c1"))),
        ("call-list", "host", CALL, 0xFFFFFFFF, pb.Request(list_processes=pb.ListProcesses())),
        ("call-clock", "host", CALL, 8, pb.Request(sync_clock=pb.SyncClock(add_ns=-5, step=True))),
        ("reply-clock", "agent", REPLY, 8, pb.Reply(clock=pb.ClockReading(realtime_ns=1 << 60))),
        ("reply-done", "agent", REPLY, 7, pb.Reply(done=pb.Empty())),
        ("reply-created", "agent", REPLY, 8, pb.Reply(created=created)),
        ("reply-error", "agent", REPLY, 9, pb.Reply(error=error)),
        ("event-exited", "agent", EVENT, 0, pb.Event(process_exited=exited)),
    ]
    return [_entry(name, side, kind, stream, _message(message)) for name, side, kind, stream, message in rows]


def _legal_streams() -> list[dict[str, Any]]:
    rows = [
        ("data-stdin", "host", DATA, 1, _at(0, b"hello\n"), 0),
        ("data-stdin-fin", "host", DATA, 1, _at(6), 1),
        ("data-stdout", "agent", DATA, 2, _at(0x1_0000_0000, b"\x00\xff line\n"), 0),
        ("data-stdout-last", "agent", DATA, 2, _at(5, b"bye"), 1),
        ("data-stdout-fin", "agent", DATA, 0xFFFFFFFF, _at((1 << 64) - 1), 1),
        ("credit-host", "host", CREDIT, 2, _credit(1000, 66536), 0),
        ("credit-host-full", "host", CREDIT, 2, _credit(0, 65536), 0),
        ("credit-host-none", "host", CREDIT, 2, _credit(9, 9), 0),
        ("credit-host-fin", "host", CREDIT, 2, _credit(1000, 1000), 1),
        ("credit-host-fin-any-numbers", "host", CREDIT, 2, _credit(2, 1), 1),
        ("credit-agent", "agent", CREDIT, 1, _credit(16384, 81920), 0),
        ("credit-agent-fin", "agent", CREDIT, 1, _credit(6, 6), 1),
    ]
    return [
        _entry(name, side, kind, stream, payload, flags=flags)
        for name, side, kind, stream, payload, flags in rows
    ]


def _wrong_kinds() -> list[dict[str, Any]]:
    return [
        _entry("type-0", "host", 0, 0, error="unknown frame type"),
        _entry("type-7", "host", 7, 1, error="unknown frame type"),
        _entry("type-255", "agent", 255, 1, error="unknown frame type"),
        _entry("call-from-agent", "agent", CALL, 1, error="wrong direction"),
        _entry("reply-from-host", "host", REPLY, 1, error="wrong direction"),
        _entry("event-from-host", "host", EVENT, 0, error="wrong direction"),
        _entry("hello-too-long", "host", HELLO, 0, length=4097, error="too long"),
        _entry("call-too-long", "host", CALL, 1, length=(1 << 20) + 1, error="too long"),
        _entry("reply-too-long", "agent", REPLY, 1, length=(1 << 20) + 1, error="too long"),
        _entry("event-too-long", "agent", EVENT, 0, length=4097, error="too long"),
        _entry("data-longest-length", "host", DATA, 1, length=0xFFFFFFFF, error="too long"),
        _entry("call-stream-0", "host", CALL, 0, error="stream must not be 0"),
        _entry("call-fin", "host", CALL, 1, flags=1, error="flag not allowed here"),
        _entry("reply-stream-0", "agent", REPLY, 0, error="stream must not be 0"),
        _entry("reply-fin", "agent", REPLY, 1, flags=1, error="flag not allowed here"),
        _entry("event-stream", "agent", EVENT, 1, error="stream must be 0"),
        _entry("event-fin", "agent", EVENT, 0, flags=1, error="flag not allowed here"),
    ]


def _wrong_headers(side: str) -> list[dict[str, Any]]:
    x = _at(0, b"x")
    flags = [
        _entry(f"data-flag-bit-{bit}-{side}", side, DATA, 1, x, flags=1 << bit, error="unknown flag")
        for bit in range(1, 8)
    ]
    return flags + [
        _entry(f"hello-fin-{side}", side, HELLO, 0, flags=1, error="flag not allowed here"),
        _entry(f"hello-stream-{side}", side, HELLO, 1, error="stream must be 0"),
        _entry(f"hello-zero-{side}", side, HELLO, 0, zero=1, error="reserved bytes not zero"),
        _entry(f"data-zero-{side}", side, DATA, 1, x, zero=0x8000, error="reserved bytes not zero"),
        _entry(f"data-stream-0-{side}", side, DATA, 0, x, error="stream must not be 0"),
        _entry(f"data-too-long-{side}", side, DATA, 1, length=8 + 65536 + 1, error="too long"),
        _entry(f"credit-stream-0-{side}", side, CREDIT, 0, _credit(0, 65536), error="stream must not be 0"),
    ]


def _wrong_payloads(side: str) -> list[dict[str, Any]]:
    rows = [
        ("data-no-offset", DATA, b"1234567", "too short"),
        ("data-empty", DATA, _at(0), "neither bytes nor FIN"),
        ("data-past-the-end", DATA, _at((1 << 64) - 1, b"x"), "runs past the last offset"),
        ("credit-short", CREDIT, b"\0" * 15, "not 16 bytes"),
        ("credit-long", CREDIT, b"\0" * 17, "not 16 bytes"),
        ("credit-backwards", CREDIT, _credit(2, 1), "limit below consumed"),
        ("credit-too-far", CREDIT, _credit(1, 65538), "limit above the window"),
    ]
    return [
        _entry(f"{name}-{side}", side, kind, 1, payload, error=error) for name, kind, payload, error in rows
    ]


def golden() -> list[dict[str, Any]]:
    """Every golden frame, names unique."""
    wrong = [entry for side in ("host", "agent") for entry in _wrong_headers(side) + _wrong_payloads(side)]
    return _legal_control() + _legal_streams() + _wrong_kinds() + wrong


def text() -> str:
    """Content of the file."""
    return json.dumps(golden(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
