"""CRI log lines, as the kubelet reads them: ``<RFC3339Nano> stdout|stderr F|P <line>\\n``."""

from __future__ import annotations

import time

LONGEST = 16_384
"""Bytes of content in one log line; a longer one is cut into P lines and a last F (containerd's default)."""


def stamp(now_ns: int) -> str:
    """RFC 3339 with nanoseconds, UTC; always as long, so that lines written again take the same room."""
    seconds, rest = divmod(now_ns, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:09d}Z"


def render(content: bytes, stream: str, now_ns: int) -> tuple[bytes, int]:
    """The log lines that ``content`` makes, and how many of its bytes they stand for.

    What is left makes no line yet: it is less than a full line and has at most 16,384 bytes.  Where the
    lines are cut depends on the bytes only, not on the pieces they came in.
    """
    head = f"{stamp(now_ns)} {stream} ".encode()
    whole, part = head + b"F ", head + b"P "
    used = content.rfind(b"\n") + 1
    lines: list[bytes] = []
    if used:
        body = content[: used - 1]
        if len(body) <= LONGEST or max(map(len, body.split(b"\n"))) <= LONGEST:
            lines.append(whole + body.replace(b"\n", b"\n" + whole) + b"\n")
        else:
            lines.extend(_cut(line, whole, part) for line in body.split(b"\n"))
    while len(content) - used > LONGEST:
        lines.append(part + content[used : used + LONGEST] + b"\n")
        used += LONGEST
    return b"".join(lines), used


def render_rest(content: bytes, stream: str, now_ns: int) -> bytes:
    """The last line, which had no newline, as P (as containerd writes it)."""
    return f"{stamp(now_ns)} {stream} P ".encode() + content + b"\n"


def _cut(line: bytes, whole: bytes, part: bytes) -> bytes:
    """One line, as P lines and an F line."""
    last = max(0, len(line) - 1) // LONGEST * LONGEST
    pieces = [part + line[at : at + LONGEST] + b"\n" for at in range(0, last, LONGEST)]
    return b"".join(pieces) + whole + line[last:] + b"\n"
