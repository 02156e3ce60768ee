"""Reports of an agent about itself and its processes.  A dishonest zone may report anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from daemonkit.observe.reported import ReportedSteps


@dataclass(frozen=True, slots=True)
class AgentHello:
    """The agent's greeting.  Texts are printable and bounded; ``boot_id``: 16 random bytes for each boot."""

    boot_id: bytes
    agent_version: str = ""
    kernel_release: str = ""
    hypervisor_type: str = ""
    file_volumes: bool = False
    anonymous_volumes: bool = False
    resizes: bool = False
    steps: ReportedSteps = field(default=ReportedSteps(), compare=False)
    """Steps of the boot, as reported by the agent."""


@dataclass(frozen=True, slots=True)
class GuestSize:
    """A zone's size by its own report: running CPUs, bytes of memory."""

    cpus: int
    memory_total_bytes: int
    memory_available_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A workload's first process (``exec_id`` ""), or an exec in it."""

    container_id: str
    exec_id: str = ""


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """A process ended; ``exit_code`` is 0 to 255, ``exited_at_ns`` is the zone's clock, unchecked."""

    process: ProcessName
    exit_code: int
    oom_killed: bool = False
    exited_at_ns: int = 0
    zone_oom: bool = False
    """With ``oom_killed``: the zone had no memory left; the container did not reach its own limit."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The agent's numbers of a process's streams; 0: no stream."""

    stdin: int = 0
    stdout: int = 0
    stderr: int = 0

    def outputs(self) -> tuple[int, ...]:
        return tuple(number for number in (self.stdout, self.stderr) if number)

    def all(self) -> tuple[int, ...]:
        return tuple(number for number in (self.stdin, self.stdout, self.stderr) if number)


@dataclass(frozen=True, slots=True)
class CreatedProcess:
    """A new process, with its pid in the zone."""

    streams: Streams
    pid: int


@dataclass(frozen=True, slots=True)
class DialedConnection:
    """A connection in the zone, with its stream in and its stream out."""

    into: int
    out: int


class ProcessState(Enum):
    """State of a listed process."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """A process in the agent's list after a reconnect."""

    name: ProcessName
    state: ProcessState | None
    """None: protectd does not know the state."""
    started_at_ns: int
    exited: ProcessExited | None
    pid: int = 0


@dataclass(frozen=True, slots=True)
class ProcessList:
    """All processes of the agent, cut to the limits of a zone."""

    processes: tuple[ListedProcess, ...]
    connections: tuple[DialedConnection, ...]


@dataclass(frozen=True, slots=True)
class ZoneFacts:
    """A zone's view of itself, bounded and printable."""

    kernel_release: str
    kernel_version: str
    hostname: str
    hypervisor_type: str
    pid1: str
    uptime_ns: int
    cpus: int
    cgroup: str
    agent_version: str
