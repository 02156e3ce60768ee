"""Zones and workloads in a running protectd: recorded values and transient state."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from daemonkit.faults import Refused
from protect.agent.agent_client import AgentClient
from protect.model.lifetime import End
from protect.model.ports import Input
from protect.model.statistics import StatsKind, ZoneStats
from protect.model.workload import Workload, WorkloadExit
from protect.model.zone import Zone, ZoneState
from protect.state.death import Death
from protect.state.exec_run import ExecRun
from protect.state.outputs import Outputs
from protect.state.zone_files import ZoneFiles


@dataclass(slots=True)
class StatsQuery:
    """An open call for statistics; ``overdue`` once nobody waits for the answer any more."""

    answer: asyncio.Future[ZoneStats]
    overdue: bool = False


@dataclass(slots=True)
class StatsAnswers:
    """Open calls and last answers of one zone, by kind; times of the event loop."""

    open: dict[StatsKind, StatsQuery] = field(default_factory=dict)
    last: dict[StatsKind, tuple[float, ZoneStats]] = field(default_factory=dict)


@dataclass(slots=True)
class ZoneClock:
    """State of the comparison of the zone's clock with the host's."""

    busy: bool = False
    again: bool = False
    """Compare once more: the host's clock has been set during the comparison."""
    fixed: bool = False
    """The agent does not allow setting the clock."""


class ZoneRuntime:
    """A zone, with transient state."""

    def __init__(self, zone: Zone, call_timeout: float) -> None:
        self.zone = zone
        self.lock = asyncio.Lock()
        """Held while the zone changes as a whole."""
        self.end = End()
        self.death: Death | None = None
        """The death, if the zone died by itself under this daemon."""
        self.heard = asyncio.Event()
        """Set while the channel is connected and set up."""
        self.client = AgentClient(zone.id, self.end, call_timeout, self._streams_taken)
        self.workloads: dict[str, WorkloadRuntime] = {}
        self.execs: dict[str, ExecRun] = {}
        self.resumed = asyncio.Event()
        """Clear while the domain is paused on purpose."""
        self.resumed.set()
        self.sharing = asyncio.Lock()
        """Held while the zone gets its shared directory."""
        self.attaching = asyncio.Lock()
        """Held while a device of the host is attached or detached."""
        self.stats = StatsAnswers()
        self.clock = ZoneClock()
        self.files = ZoneFiles()
        self.dialling = 0
        """Number of callers of dial, connected or not yet."""

    @property
    def id(self) -> str:
        return self.zone.id

    @property
    def connected(self) -> bool:
        return self.client.connected

    @property
    def running(self) -> bool:
        """Whether work in the zone is still allowed."""
        return not self.end and self.zone.state is ZoneState.RUNNING

    @property
    def paused(self) -> bool:
        """Whether the domain is paused on purpose.  In a paused zone nothing runs or answers."""
        return not self.resumed.is_set()

    @property
    def agent(self) -> AgentClient:
        """The client of a running zone.  Refused: the zone does not run, or is paused."""
        self.end.check("use zone", self.id)
        if self.zone.state is not ZoneState.RUNNING:
            raise Refused("use zone", self.id, f"it is {self.zone.state.value}")
        if self.paused:
            raise Refused("use zone", self.id, "it is paused", f"protect zone resume {self.id}")
        return self.client

    def _streams_taken(self) -> set[int]:
        return {number for one in self.workloads.values() for number in one.workload.streams.all()}


class WorkloadRuntime:
    """A workload, with transient state."""

    def __init__(self, workload: Workload, zone: ZoneRuntime) -> None:
        self.workload = workload
        self.zone = zone
        self.lock = asyncio.Lock()
        """Held while the workload changes."""
        self.outputs: Outputs | None = None
        self.stdin: Input | None = None
        self.exit: WorkloadExit | None = None
        """The exit status; may be known before the last output."""
        self.exiting: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        """Set once the workload is EXITED and recorded, or gone."""
        self.session = ""
        """Session of the server for the volumes; "": no volumes, or known only to an earlier daemon."""
        self.share_lost = asyncio.Event()
        self.lost_because = ""
        """Why the workload lost its volumes."""
        self.gone = False
        self.deleting = False
        self.holds_disks = True
        """Whether the workload uses its disks.  False: disks without other users are or will be detached."""

    @property
    def id(self) -> str:
        return self.workload.id

    def lose_share(self, cause: str) -> None:
        self.lost_because = cause
        self.share_lost.set()
