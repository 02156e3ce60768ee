"""Golden frames, shared by the C and the Python tests; ``python -m tests.support.golden_frames`` writes them.

Each entry is one frame as ``direction`` sends it: ``error`` is null for a legal one, else why a
receiver must close the connection.  A frame whose header is wrong already may have no payload in ``hex``.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from xenpod_proto.channel.v1 import channel_pb2 as pb

PATH = Path(__file__).parent.parent / "golden" / "frames.json"
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


def _legal() -> list[dict[str, Any]]:
    process = pb.ProcessRef(container_id="c1")
    return [
        _entry(
            "hello-host", "host", HELLO, 0, _message(pb.Hello(version_min=1, version_max=1, zone_id="z1"))
        ),
        _entry(
            "hello-agent",
            "agent",
            HELLO,
            0,
            _message(
                pb.Hello(
                    version_min=1,
                    version_max=1,
                    boot_id=bytes(range(16)),
                    agent_version="0.1.0",
                    kernel_release="6.1.0",
                    hypervisor_type="xen",
                )
            ),
        ),
        _entry(
            "call-start", "host", CALL, 7, _message(pb.Request(start_container=pb.StartContainer(id="c1")))
        ),
        _entry(
            "call-list", "host", CALL, 0xFFFFFFFF, _message(pb.Request(list_processes=pb.ListProcesses()))
        ),
        _entry("reply-done", "agent", REPLY, 7, _message(pb.Reply(done=pb.Empty()))),
        _entry(
            "reply-created",
            "agent",
            REPLY,
            8,
            _message(
                pb.Reply(created=pb.ProcessCreated(stdin_stream=1, stdout_stream=2, stderr_stream=3, pid=42))
            ),
        ),
        _entry(
            "reply-error",
            "agent",
            REPLY,
            9,
            _message(pb.Reply(error=pb.Error(code=5, message="start container: c1: no such container"))),
        ),
        _entry(
            "event-exited",
            "agent",
            EVENT,
            0,
            _message(
                pb.Event(process_exited=pb.ProcessExited(process=process, exit_code=137, oom_killed=True))
            ),
        ),
        _entry("data-stdin", "host", DATA, 1, _at(0, b"hello\n")),
        _entry("data-stdin-fin", "host", DATA, 1, _at(6), flags=1),
        _entry("data-stdout", "agent", DATA, 2, _at(0x1_0000_0000, b"\x00\xff line\n")),
        _entry("data-stdout-last", "agent", DATA, 2, _at(5, b"bye"), flags=1),
        _entry("data-stdout-fin", "agent", DATA, 0xFFFFFFFF, _at((1 << 64) - 1), flags=1),
        _entry("credit-host", "host", CREDIT, 2, _credit(1000, 66536)),
        _entry("credit-host-full", "host", CREDIT, 2, _credit(0, 65536)),
        _entry("credit-host-none", "host", CREDIT, 2, _credit(9, 9)),
        _entry("credit-host-fin", "host", CREDIT, 2, _credit(1000, 1000), flags=1),
        _entry("credit-agent", "agent", CREDIT, 1, _credit(16384, 81920)),
        _entry("credit-agent-fin", "agent", CREDIT, 1, _credit(6, 6), flags=1),
    ]


def _header_breaks() -> list[dict[str, Any]]:
    bad: list[dict[str, Any]] = [
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
    ]
    for direction in ("host", "agent"):
        for bit in range(1, 8):
            bad.append(
                _entry(
                    f"data-flag-bit-{bit}-{direction}",
                    direction,
                    DATA,
                    1,
                    _at(0, b"x"),
                    flags=1 << bit,
                    error="unknown flag",
                )
            )
        bad += [
            _entry(f"hello-fin-{direction}", direction, HELLO, 0, flags=1, error="flag not allowed here"),
            _entry(f"hello-stream-{direction}", direction, HELLO, 1, error="stream must be 0"),
            _entry(f"hello-zero-{direction}", direction, HELLO, 0, zero=1, error="reserved bytes not zero"),
            _entry(
                f"data-zero-{direction}",
                direction,
                DATA,
                1,
                _at(0, b"x"),
                zero=0x8000,
                error="reserved bytes not zero",
            ),
            _entry(
                f"data-stream-0-{direction}", direction, DATA, 0, _at(0, b"x"), error="stream must not be 0"
            ),
            _entry(f"data-no-offset-{direction}", direction, DATA, 1, b"1234567", error="too short"),
            _entry(f"data-empty-{direction}", direction, DATA, 1, _at(0), error="neither bytes nor FIN"),
            _entry(f"data-too-long-{direction}", direction, DATA, 1, length=8 + 65536 + 1, error="too long"),
            _entry(
                f"data-past-the-end-{direction}",
                direction,
                DATA,
                1,
                _at((1 << 64) - 1, b"x"),
                error="runs past the last offset",
            ),
            _entry(
                f"credit-stream-0-{direction}",
                direction,
                CREDIT,
                0,
                _credit(0, 65536),
                error="stream must not be 0",
            ),
            _entry(f"credit-short-{direction}", direction, CREDIT, 1, b"\0" * 15, error="not 16 bytes"),
            _entry(f"credit-long-{direction}", direction, CREDIT, 1, b"\0" * 17, error="not 16 bytes"),
            _entry(
                f"credit-backwards-{direction}",
                direction,
                CREDIT,
                1,
                _credit(2, 1),
                error="limit below consumed",
            ),
            _entry(
                f"credit-too-far-{direction}",
                direction,
                CREDIT,
                1,
                _credit(1, 65538),
                error="limit above the window",
            ),
        ]
    bad += [
        _entry("call-stream-0", "host", CALL, 0, error="stream must not be 0"),
        _entry("call-fin", "host", CALL, 1, flags=1, error="flag not allowed here"),
        _entry("reply-stream-0", "agent", REPLY, 0, error="stream must not be 0"),
        _entry("reply-fin", "agent", REPLY, 1, flags=1, error="flag not allowed here"),
        _entry("event-stream", "agent", EVENT, 1, error="stream must be 0"),
        _entry("event-fin", "agent", EVENT, 0, flags=1, error="flag not allowed here"),
    ]
    return bad


def golden() -> list[dict[str, Any]]:
    """Every golden frame, names unique."""
    return _legal() + _header_breaks()


def text() -> str:
    """What the file holds."""
    return json.dumps(golden(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
