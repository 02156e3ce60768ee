"""Reads CRI logs back, strictly."""

from __future__ import annotations

import re
from pathlib import Path

LINE = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) ([FP]) (.*)$", re.DOTALL)


def read_log(*paths: Path) -> dict[str, bytes]:
    """Each stream's bytes as the logs, oldest first, tell them; every line must be well-formed."""
    streams = {"stdout": bytearray(), "stderr": bytearray()}
    for path in paths:
        raw = path.read_bytes()
        assert raw == b"" or raw.endswith(b"\n")
        for line in raw.split(b"\n")[:-1]:
            match = LINE.match(line)
            assert match, line[:100]
            streams[match[1].decode()] += match[3] + (b"\n" if match[2] == b"F" else b"")
    return {name: bytes(content) for name, content in streams.items()}


def log_files(path: Path) -> list[Path]:
    """Rotated files by age, then the current file."""
    return [*sorted(path.parent.glob(f"{path.name}.*")), *([path] if path.exists() else [])]
