"""What an agent says of itself and its processes.  It is true only as far as the zone is honest."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from daemonkit.observe.reported import ReportedSteps


@dataclass(frozen=True, slots=True)
class AgentHello:
    """The agent's greeting.  Texts are printable and bounded; ``boot_id`` is 16 bytes, drawn at its boot."""

    boot_id: bytes
    agent_version: str = ""
    kernel_release: str = ""
    hypervisor_type: str = ""
    file_volumes: bool = False
    resizes: bool = False
    steps: ReportedSteps = field(default=ReportedSteps(), compare=False)
    """What it says its boot consisted of."""


@dataclass(frozen=True, slots=True)
class GuestSize:
    """How large a zone says that it is: CPUs that run, bytes of memory."""

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
    """With ``oom_killed``: the zone had no memory left; its own limit was not reached."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The agent's numbers of a process's streams; 0: there is no such stream."""

    stdin: int = 0
    stdout: int = 0
    stderr: int = 0

    def outputs(self) -> tuple[int, ...]:
        return tuple(number for number in (self.stdout, self.stderr) if number)

    def all(self) -> tuple[int, ...]:
        return tuple(number for number in (self.stdin, self.stdout, self.stderr) if number)


@dataclass(frozen=True, slots=True)
class CreatedProcess:
    """A process that was made, with its pid in the zone."""

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
    """A process as the agent lists it after a reconnect."""

    name: ProcessName
    state: ProcessState | None
    """None: a state that is unknown here."""
    started_at_ns: int
    exited: ProcessExited | None
    pid: int = 0


@dataclass(frozen=True, slots=True)
class ProcessList:
    """Everything that the agent has, cut to what a zone may have."""

    processes: tuple[ListedProcess, ...]
    connections: tuple[DialedConnection, ...]


@dataclass(frozen=True, slots=True)
class ZoneFacts:
    """A zone's own view of itself, bounded and printable."""

    kernel_release: str
    kernel_version: str
    hostname: str
    hypervisor_type: str
    pid1: str
    uptime_ns: int
    cpus: int
    cgroup: str
    agent_version: str
