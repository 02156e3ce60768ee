"""Fault injection: errors of the fake toolstack on a test's demand.

FakeToolstack takes a plan as an argument, or from ``<run_dir>/faults.toml``, read at every operation::

    [[fault]]
    at = "attach_disk"     # an operation of the table below
    kind = "fail"
    name = "web-*"         # domain names, as a shell pattern; default "*"
    skip = 0               # calls without a fault before the first
    times = 1              # number of faults; 0: no limit
    after_ms = 0           # for die and delay

and before the rows, ``foreign_memory = 0``: simulated memory of foreign domains, in bytes.

==================  ==========================================================================
kind                effect
==================  ==========================================================================
fail                the operation fails without any effect
half                the operation takes effect (create: up to the running launcher), then fails
delay               the operation begins ``after_ms`` later
die                 at = "unpause": the domain's first process is killed ``after_ms`` later;
                    at = "share": the file server's end is reported ``after_ms`` later
stall               at = "open_channel": the connection opens, but transfers no byte
exhausted           at = "create": the host has no memory left (physical_info says so too)
==================  ==========================================================================

Operations: create, unpause, set_shares, set_disk_rates, destroy, attach_disk, detach_disk, attach_pci,
detach_pci, share,
host_interface, open_channel.
A failed create leaves nothing behind, with every kind.  The other verbs of kind ``half`` leave
their effect behind; the caller has to find and remove it, as after a real hypervisor's error.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path

from daemonkit.config import Bytes, at_least, parse
from daemonkit.convert import WrongKey
from daemonkit.faults import Invalid
from protect.model.errors import ToolstackError


class FaultKind(Enum):
    """The kind of an injected fault."""

    FAIL = "fail"
    HALF = "half"
    DELAY = "delay"
    DIE = "die"
    STALL = "stall"
    EXHAUSTED = "exhausted"


_CHANGING = frozenset(
    {
        "create",
        "unpause",
        "set_shares",
        "set_disk_rates",
        "destroy",
        "attach_disk",
        "detach_disk",
        "share",
        "attach_pci",
        "detach_pci",
    }
)

_ANY = _CHANGING | {"host_interface", "open_channel"}
_LEGAL: Mapping[FaultKind, frozenset[str]] = {
    FaultKind.FAIL: _ANY,
    FaultKind.HALF: _CHANGING,
    FaultKind.DELAY: _ANY,
    FaultKind.DIE: frozenset({"unpause", "share"}),
    FaultKind.STALL: frozenset({"open_channel"}),
    FaultKind.EXHAUSTED: frozenset({"create"}),
}


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One row of a plan; see the module's table."""

    at: str
    kind: FaultKind
    name: str = "*"
    skip: int = 0
    times: int = 1
    after_ms: int = 0

    def __post_init__(self) -> None:
        if self.at not in _LEGAL[self.kind]:
            raise WrongKey("at", f"fault {self.kind.value!r} cannot happen at {self.at!r}")
        at_least(0, self, "skip", "times", "after_ms")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Rows, tried in order; the first match takes effect."""

    fault: tuple[InjectedFault, ...] = ()
    foreign_memory: Bytes = Bytes(0)

    def __post_init__(self) -> None:
        at_least(0, self, "foreign_memory")


@dataclass(slots=True)
class FaultInjector:
    """Carries out a plan, and counts the uses of each row."""

    plan: FaultPlan
    file: Path | None = None
    _counts: dict[InjectedFault, int] = field(default_factory=dict)

    def take(self, at: str, name: str) -> InjectedFault | None:
        """The fault for this operation, counted as used; None: no fault."""
        for fault in (*self.plan.fault, *self._from_file()):
            if fault.at != at or not fnmatchcase(name, fault.name):
                continue
            count = self._counts.get(fault, 0)
            self._counts[fault] = count + 1
            if count >= fault.skip and (fault.times == 0 or count < fault.skip + fault.times):
                return fault
        return None

    def foreign_memory(self) -> int:
        """Simulated memory of foreign domains, in bytes."""
        return self.plan.foreign_memory + self._plan_of_file().foreign_memory

    def exhausted(self) -> bool:
        """Whether a create would find no memory now."""
        for fault in (*self.plan.fault, *self._from_file()):
            used = self._counts.get(fault, 0) >= fault.skip + fault.times
            if fault.kind is FaultKind.EXHAUSTED and (fault.times == 0 or not used):
                return True
        return False

    def _from_file(self) -> tuple[InjectedFault, ...]:
        return self._plan_of_file().fault

    def _plan_of_file(self) -> FaultPlan:
        if self.file is None:
            return FaultPlan()
        try:
            text = self.file.read_text()
        except FileNotFoundError:
            return FaultPlan()
        try:
            return parse(FaultPlan, tomllib.loads(text))
        except ValueError as error:
            raise Invalid("read fault plan", str(self.file), str(error)) from error


async def before(fault: InjectedFault | None, operation: str, subject: str) -> None:
    """Apply a fault before its operation."""
    if fault is None:
        return
    if fault.kind is FaultKind.DELAY:
        await asyncio.sleep(fault.after_ms / 1000)
    if fault.kind is FaultKind.FAIL:
        raise injected(operation, subject)


def after(fault: InjectedFault | None, operation: str, subject: str) -> None:
    """Apply a fault after its operation."""
    if fault is not None and fault.kind is FaultKind.HALF:
        raise injected(operation, subject)


def injected(operation: str, subject: str) -> ToolstackError:
    """The error of an injected fault."""
    return ToolstackError(operation, subject, "injected fault")
