"""Cleans untrusted names of entries."""

from __future__ import annotations


def cleaned(name: bytes) -> list[bytes]:
    """The parts of a name; ``.`` and ``..`` are resolved as text and stay inside the root."""
    parts: list[bytes] = []
    for part in name.split(b"/"):
        if part == b"..":
            if parts:
                parts.pop()
        elif part not in (b"", b"."):
            parts.append(part)
    return parts
