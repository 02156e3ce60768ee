"""A fake domain: its files, and the daemon's handles of it.

Its directory ``<run_dir>/domains/<uuid>/`` has ``spec.json`` (written first, before any side effect),
``lock`` (held while fakedom starts the domain), fakedom's files (``pid``, ``channel.sock``, ``console.log``,
``status``) and ``disks/<vdev>``.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import aiofiles

from protect.host.loops import Loop
from protect.model.toolstack import DomainId, DomainInfo, DomainSpec, DomainState, Mode, ShutdownReason
from protect.toolstack.pidfd_process import PidfdProcess

_REASONS = {
    "poweroff": ShutdownReason.POWEROFF,
    "reboot": ShutdownReason.REBOOT,
    "crash": ShutdownReason.CRASH,
    # A kill from outside, like the destruction of a domain: no process within can kill the first process.
    "killed": ShutdownReason.DESTROYED,
}


@dataclass(slots=True)
class Domain:
    """The daemon's handles of a domain.  ``loops`` is by vdev; the value of a block device is None."""

    spec: DomainSpec
    directory: Path
    id: DomainId
    process: PidfdProcess | None
    """The first process; None: the process had ended before this daemon opened the pidfd."""
    monitor: PidfdProcess | None
    loops: dict[str, Loop | None] = field(default_factory=dict)
    throttle: Callable[[int], None] = lambda device: None
    """Applies the rates to a disk under attach (by st_rdev); does nothing while no rates are set."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by verbs that change the domain."""
    reason: ShutdownReason | None = None
    """Reason of the end; None while the domain lives."""
    killed: bool = False
    """Whether we destroyed the domain."""

    @property
    def console(self) -> Path:
        """Output of the zone's agent; untrusted."""
        return self.directory / "console.log"

    @property
    def state(self) -> DomainState:
        """SHUTDOWN from the end of the first process on."""
        found = self.process.stat() if self.process and self.reason is None else None
        if found is None:
            return DomainState.SHUTDOWN
        # Nothing inside the zone can stop its pid 1: "T" is our own SIGSTOP before the first unpause.
        return DomainState.PAUSED if found.state == "T" else DomainState.RUNNING

    def end_reason(self) -> ShutdownReason:
        """The reason that fakedom's monitor wrote when the first process ended; CRASH without one."""
        try:
            text = (self.directory / "status").read_text(errors="replace").strip()
        except FileNotFoundError:
            return ShutdownReason.CRASH
        return _REASONS.get(text, ShutdownReason.UNKNOWN)

    def info(self, cpu_time_ns: int, memory_limit: int, *, frozen: bool) -> DomainInfo:
        """The domain as the port shows it.  The host's kernel lets the zone use all of its memory limit."""
        state = self.state
        return DomainInfo(
            id=self.id,
            uuid=self.spec.uuid,
            name=self.spec.name,
            state=DomainState.PAUSED if frozen and state is DomainState.RUNNING else state,
            memory_bytes=self.spec.memory_bytes,
            vcpus=self.spec.most_vcpus,
            cpu_time_ns=cpu_time_ns,
            shutdown_reason=self.reason,
            mark=self.spec.mark,
            held_bytes=memory_limit,
            vcpus_online=self.spec.vcpus,
        )

    def claim(self, mark: str) -> Domain:
        """Give the domain the mark, unless it has a mark."""
        if not self.spec.mark:
            spec = replace(self.spec, mark=mark)
            write_spec(self.directory, spec)
            self.spec = spec
        return self

    def release(self) -> None:
        """Close our descriptors; the domain goes on."""
        for process in (self.process, self.monitor):
            if process is not None:
                process.close()
        for loop in self.loops.values():
            if loop is not None:
                loop.close()
        self.loops.clear()


def write_spec(directory: Path, spec: DomainSpec) -> None:
    """Write the intent to create the domain."""
    values = {
        "uuid": str(spec.uuid),
        "name": spec.name,
        "memory_bytes": spec.memory_bytes,
        "vcpus": spec.vcpus,
        "mode": spec.mode.value,
        "interfaces": spec.interfaces,
        "environment": dict(spec.environment),
        "netns": spec.netns,
        "shared": str(spec.shared) if spec.shared else "",
        "seclabel": spec.seclabel,
        "mark": spec.mark,
        "memory_max_bytes": spec.memory_max_bytes,
        "vcpus_max": spec.vcpus_max,
        "hotplug_max_bytes": spec.hotplug_max_bytes,
        "cpupool": spec.cpupool,
        "passthrough": spec.passthrough,
    }
    write_atomically(directory / "spec.json", json.dumps(values))


async def read_spec(directory: Path) -> DomainSpec | None:
    """Read the spec; None if it is missing or incomplete: then create had no other effect yet."""
    try:
        async with aiofiles.open(directory / "spec.json") as file:
            values = json.loads(await file.read())
    except FileNotFoundError:
        return None
    return DomainSpec(
        uuid=UUID(values["uuid"]),
        name=values["name"],
        memory_bytes=values["memory_bytes"],
        vcpus=values["vcpus"],
        mode=Mode(values["mode"]),
        interfaces=values["interfaces"],
        environment=values["environment"],
        netns=values.get("netns", ""),
        shared=Path(values["shared"]) if values.get("shared") else None,
        seclabel=values.get("seclabel", ""),
        mark=values.get("mark", ""),
        memory_max_bytes=values.get("memory_max_bytes", 0),
        vcpus_max=values.get("vcpus_max", 0),
        hotplug_max_bytes=values.get("hotplug_max_bytes", 0),
        cpupool=values.get("cpupool", ""),
        passthrough=values.get("passthrough", False),
    )


def read_pid(directory: Path) -> tuple[int, int] | None:
    """Pid and start time of the first process; None if fakedom had not written them."""
    with suppress(FileNotFoundError):
        pid, starttime = (directory / "pid").read_text().split()
        return int(pid), int(starttime)
    return None


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically, also for concurrent readers.  No sync: the file need not survive a reboot."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    os.rename(temporary, path)
