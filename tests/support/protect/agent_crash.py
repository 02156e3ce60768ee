"""Crashes the agent of a fake zone as a mistake in its code would: no signal from outside does."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

_ILLEGAL = b"\xf4"
"""hlt, an instruction of the kernel: SIGSEGV, at any address."""


def crash_agent(pid: int, directory: Path) -> None:
    """Have nothing but illegal instructions where the code of the first process was, and wake it."""
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for begin, end in _code(pid):
            memory.seek(begin)
            memory.write(_ILLEGAL * (end - begin))
    # The path may be longer than an address can hold.
    place = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as wake, contextlib.suppress(ConnectionError):
            wake.connect(f"/proc/self/fd/{place}/channel.sock")
    finally:
        os.close(place)


def _code(pid: int) -> list[tuple[int, int]]:
    """Address of the code of the program, which is linked statically."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, rights, *_, name = line.split()
        if "x" in rights and name == "/init":
            begin, end = place.split("-")
            found.append((int(begin, 16), int(end, 16)))
    return found
