"""Kinds of zones' deaths, and their messages."""

from __future__ import annotations

import pytest

from protect.model.toolstack import ShutdownReason
from protect.model.workload import Reason
from protect.state import death
from protect.state.death import Death, DeathKind, judge, with_console

INIT = b"[    3.1] Kernel panic - not syncing: Attempted to kill init! exitcode=0x%08x\n"


@pytest.mark.parametrize(
    ("reason", "console", "kind", "cause"),
    [
        (
            ShutdownReason.CRASH,
            b"[1] sysrq: Trigger a crash\n[1] Kernel panic - not syncing: sysrq triggered crash\nCPU: 0\n",
            DeathKind.KERNEL_PANIC,
            "its kernel panicked: sysrq triggered crash",
        ),
        (ShutdownReason.CRASH, INIT % 11, DeathKind.AGENT_CRASHED, "its agent ended by signal 11"),
        (ShutdownReason.CRASH, INIT % 0x100, DeathKind.AGENT_CRASHED, "its agent ended with exit status 1"),
        (
            ShutdownReason.CRASH,
            b"Kernel panic - not syncing: System is deadlocked on memory\r\n",
            DeathKind.OUT_OF_MEMORY,
            "its kernel had no memory left: System is deadlocked on memory",
        ),
        (
            ShutdownReason.CRASH,
            b"Kernel panic - not syncing: Out of memory: compulsory panic_on_oom is enabled\n",
            DeathKind.OUT_OF_MEMORY,
            "its kernel had no memory left: Out of memory: compulsory panic_on_oom is enabled",
        ),
        (
            ShutdownReason.CRASH,
            b"a line\n",
            DeathKind.CRASHED,
            "it crashed, and its console does not say why",
        ),
        (ShutdownReason.CRASH, b"", DeathKind.CRASHED, "it crashed, and its console does not say why"),
        # A zone's earlier words count only if the hypervisor reports a crash.
        (ShutdownReason.POWEROFF, INIT % 11, DeathKind.POWERED_OFF, "it powered itself off"),
        (ShutdownReason.REBOOT, INIT % 11, DeathKind.REBOOTED, "it wanted to reboot"),
        (
            ShutdownReason.DESTROYED,
            INIT % 11,
            DeathKind.DESTROYED,
            "its domain was destroyed, and not by protectd",
        ),
        (
            ShutdownReason.UNKNOWN,
            b"",
            DeathKind.UNKNOWN,
            "its domain ended, and the hypervisor does not say why",
        ),
    ],
)
def test_the_kind_of_a_death_follows_from_the_facts(
    reason: ShutdownReason, console: bytes, kind: DeathKind, cause: str
) -> None:
    judged = judge(reason, console)
    assert (judged.kind, judged.cause) == (kind, cause)
    assert judged.reason == f"{kind.value}: {cause}"


def test_the_last_panic_counts() -> None:
    console = b"Kernel panic - not syncing: one\nKernel panic - not syncing: two\n"
    assert judge(ShutdownReason.CRASH, console).cause == "its kernel panicked: two"


def test_a_hostile_console_is_bounded() -> None:
    untrusted = b"Kernel panic - not syncing: \x1b[2J" + b"x" * 5000 + b"\n"
    judged = judge(ShutdownReason.CRASH, untrusted)
    assert len(judged.cause) <= 300 and "\x1b" not in judged.reason + judged.console
    many = judge(ShutdownReason.CRASH, b"".join(b"line %d\n" % n for n in range(100)))
    assert many.console.splitlines() == [f"line {n}" for n in range(50, 100)]


def test_every_kind_is_a_reason_of_workloads() -> None:
    reasons = {reason.value for reason in Reason if reason.of_zone}
    assert reasons == {f"Zone{kind.value}" for kind in DeathKind}


def test_a_message_is_cut_to_its_size() -> None:
    assert with_console("why", "") == "why"
    assert with_console("why", "a\nb") == "why\nits console's last lines:\na\nb"
    lines = [f"{n} \u00e4\u00f6\u00fc {'x' * 80}" for n in range(100)]
    long = with_console("why", "\n".join(lines))
    assert len(long.encode()) <= death.MESSAGE_LIMIT
    head, *shown = long.splitlines()[1:]
    assert head == "its console's last lines:" and shown == lines[-len(shown) :] and len(shown) > 30
    assert with_console("w" * 5000, "a").startswith("w" * 5000)
    assert Death(DeathKind.CRASHED, "why").console == ""
