"""Accounts of a simulated agent's streams."""

from __future__ import annotations

from dataclasses import dataclass, field

from protect.channel.frames import WINDOW


@dataclass
class SimOutput:
    """stdout or stderr: all output of the process, and the part that the host received."""

    written: bytearray = field(default_factory=bytearray)
    ended: bool = False
    consumed: int = 0
    limit: int = WINDOW
    sent: int = 0
    live: bool = True
    fin_sent: bool = False
    forgotten: bool = False
    given_up: bool = False


@dataclass
class SimInput:
    """stdin: all input of the process, which reads only while ``reading``."""

    read: bytearray = field(default_factory=bytearray)
    waiting: bytearray = field(default_factory=bytearray)
    reading: bool = True
    limit: int = WINDOW
    next: int = 0
    fin: bool = False
    eof: bool = False
    forgotten: bool = False
