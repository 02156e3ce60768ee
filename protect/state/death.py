"""Cause of a zone's death, from the hypervisor's report and the last lines of the console."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from protect.model.checks import plain_lines, printable
from protect.model.lifetime import ShutdownReason

CONSOLE_LINES = 50
"""Lines of the console that a dead zone keeps."""
CONSOLE_BYTES = 16 << 10
"""Bytes at the console's end to search for lines."""
MESSAGE_LIMIT = 4000
"""Longest console in a message, in bytes: the kubelet keeps 4096 bytes of a container's message."""

_CAUSE_LIMIT = 300
_PANIC = "Kernel panic - not syncing: "
_INIT = re.compile(r"Attempted to kill init! exitcode=0x([0-9a-f]{1,8})")
_MEMORY = re.compile(r"(?:System is deadlocked on memory|Out of memory)")


class DeathKind(Enum):
    """Cause of a zone's end; callers see the value.  The zone's own report tells the first four apart."""

    KERNEL_PANIC = "KernelPanic"
    AGENT_CRASHED = "AgentCrashed"
    OUT_OF_MEMORY = "OutOfMemory"
    CRASHED = "Crashed"
    POWERED_OFF = "PoweredOff"
    REBOOTED = "Rebooted"
    DESTROYED = "Destroyed"
    VANISHED = "Vanished"
    HOST_SHUT_DOWN = "HostShutDown"
    RULES_BROKEN = "RulesBroken"
    AGENT_REPLACED = "AgentReplaced"
    CHANNEL_LOST = "ChannelLost"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a zone; ``cause``: one line; ``console``: the last lines as plain text."""

    kind: DeathKind
    cause: str
    console: str = ""

    @property
    def reason(self) -> str:
        """``KernelPanic: its kernel panicked: ...``"""
        return f"{self.kind.value}: {self.cause}"


_OTHERS: Mapping[ShutdownReason, tuple[DeathKind, str]] = {
    ShutdownReason.POWEROFF: (DeathKind.POWERED_OFF, "it powered itself off"),
    ShutdownReason.REBOOT: (DeathKind.REBOOTED, "it wanted to reboot"),
    ShutdownReason.DESTROYED: (DeathKind.DESTROYED, "its domain was destroyed, and not by protectd"),
    ShutdownReason.RECONNECTED: (DeathKind.RULES_BROKEN, ShutdownReason.RECONNECTED.value),
    ShutdownReason.UNKNOWN: (DeathKind.UNKNOWN, "its domain ended, and the hypervisor does not say why"),
}


def judge(reason: ShutdownReason, untrusted_console: bytes) -> Death:
    """The death of a domain with this ``reason`` and this end of the console."""
    lines = plain_lines(untrusted_console, CONSOLE_LINES)
    kind, cause = _OTHERS[reason] if reason in _OTHERS else _crash(lines)
    return Death(kind, printable(cause, _CAUSE_LIMIT), "\n".join(lines))


def _crash(lines: list[str]) -> tuple[DeathKind, str]:
    said = next((line.partition(_PANIC)[2] for line in reversed(lines) if _PANIC in line), None)
    if said is None:
        return DeathKind.CRASHED, "it crashed, and its console does not say why"
    if init := _INIT.match(said):
        return DeathKind.AGENT_CRASHED, f"its agent ended {_ending(int(init[1], 16))}"
    if _MEMORY.match(said):
        return DeathKind.OUT_OF_MEMORY, f"its kernel had no memory left: {said}"
    return DeathKind.KERNEL_PANIC, f"its kernel panicked: {said}"


def _ending(status: int) -> str:
    """Text for a status of wait(2)."""
    if status & 0x7F:
        return f"by signal {status & 0x7F}"
    return f"with exit status {status >> 8 & 0xFF}"


def with_console(text: str, console: str) -> str:
    """A message for people: ``text``, then as many last lines of the console as fit."""
    if not console:
        return text
    head = f"{text}\nits console's last lines:\n"
    left = max(0, MESSAGE_LIMIT - len(head.encode()))
    tail = console.encode()[-left:].decode(errors="ignore") if left else ""
    if len(tail) < len(console):
        tail = tail.partition("\n")[2] or tail
    return head + tail
