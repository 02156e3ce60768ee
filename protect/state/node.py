"""Everything protectd holds while it runs: its collaborators, and what each zone and workload is now."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from daemonkit.faults import Fault, Missing, Refused, Unreachable
from daemonkit.logs import fields
from protect.config import Config
from protect.model.ports import AgentLink, Input, LinkFactory, LogFactory, Splice, Volumes
from protect.model.workload import Exit, Workload, WorkloadState
from protect.model.zone import Zone, ZoneState
from protect.state.hub import Change, Hub, WorkloadGone, WorkloadSeen, ZoneGone, ZoneSeen
from protect.state.ledger import Ledger
from protect.state.store import Intent, Store
from protect.tasks import Tasks, over
from protect.toolstack.port import Toolstack
from protect.workloads.execs import ExecRun
from protect.workloads.outputs import Outputs
from protect.zones.answers import Answers

T = TypeVar("T")

log = logging.getLogger(__name__)

_ADOPTION = 5.0
"""Seconds a call waits for a zone that is just being adopted."""


class End:
    """The end of a life, once: nobody may go on working in what it was the life of."""

    def __init__(self, kind: type[Fault] = Refused) -> None:
        self.cause = ""
        self._kind = kind
        self._declared = asyncio.Event()

    def declare(self, cause: str) -> None:
        """The first cause stays."""
        if not self._declared.is_set():
            self.cause = cause
            self._declared.set()

    def __bool__(self) -> bool:
        return self._declared.is_set()

    async def wait(self) -> None:
        await self._declared.wait()

    def fault(self, operation: str, subject: str) -> Fault:
        """What to tell whoever wants to go on."""
        return self._kind(operation, subject, self.cause)

    async def guard(self, zone_id: str, work: Coroutine[Any, Any, T]) -> T:
        """Do the work, but not beyond the end: its kind of fault with its cause."""
        if self:
            work.close()
            raise self._kind("use", zone_id, self.cause)
        task = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(self._declared.wait())
        try:
            await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self._kind("use", zone_id, self.cause)
        finally:
            ended.cancel()
            task.cancel()
            await over(task)


class ZoneRuntime:
    """One zone, with what cannot be stored."""

    def __init__(self, zone: Zone) -> None:
        self.zone = zone
        self.lock = asyncio.Lock()
        """Held by whoever changes the zone as a whole."""
        self.end = End()
        self.link: AgentLink | None = None
        self.answering = asyncio.Event()
        """Set once the agent has been spoken to (by launch or adoption)."""
        self.workloads: dict[str, WorkloadRuntime] = {}
        self.execs: dict[str, ExecRun] = {}
        self.stats = Answers()
        self.connections: set[int] = set()
        """Of those made by dialling: the numbers of their input streams."""
        self.dialling = 0
        """Callers of dial, connected or not yet."""

    @property
    def id(self) -> str:
        return self.zone.id

    @property
    def connected(self) -> bool:
        return self.link is not None and self.link.connected

    async def agent(self) -> AgentLink:
        """The link of a running zone; Refused when it does not run, Unreachable when it is silent."""
        if self.end:
            raise Refused("use zone", self.id, self.end.cause)
        if self.zone.state is not ZoneState.RUNNING:
            raise Refused("use zone", self.id, f"it is {self.zone.state.value}")
        if not self.answering.is_set():
            await self._adopted()
        if self.link is None:
            raise Unreachable("use zone", self.id, "its agent has not answered yet", "try again")
        return self.link

    async def _adopted(self) -> None:
        try:
            async with asyncio.timeout(_ADOPTION):
                await self.end.guard(f"zone {self.id}", self.answering.wait())
        except TimeoutError:
            raise Unreachable("use zone", self.id, "its agent has not answered yet", "try again") from None


class WorkloadRuntime:
    """One workload, with what cannot be stored."""

    def __init__(self, workload: Workload, zone: ZoneRuntime) -> None:
        self.workload = workload
        self.zone = zone
        self.lock = asyncio.Lock()
        """Held by whoever changes the workload."""
        self.outputs: Outputs | None = None
        self.stdin: Input | None = None
        self.exit: Exit | None = None
        """Its end as heard, before all its output has come."""
        self.exiting: asyncio.Task[None] | None = None
        self.settled = asyncio.Event()
        """Set once it is EXITED with its end recorded, or gone."""
        self.gone = False
        self.deleting = False
        self.holds_disks = True
        """False: what another does not hold is detached, or about to be."""

    @property
    def id(self) -> str:
        return self.workload.id


@dataclass
class Node:
    """The daemon's collaborators, and the registries."""

    config: Config
    toolstack: Toolstack
    store: Store
    links: LinkFactory
    logs: LogFactory
    splice: Splice
    ledger: Ledger
    volumes: Volumes
    tasks: Tasks = field(default_factory=Tasks)
    zones: dict[str, ZoneRuntime] = field(default_factory=dict)
    workloads: dict[str, WorkloadRuntime] = field(default_factory=dict)
    stopping: End = field(default_factory=lambda: End(Unreachable))
    """The end of the daemon itself; zones go on."""
    hub: Hub = field(init=False)

    def __post_init__(self) -> None:
        self.hub = Hub(self._everything)

    def zone(self, operation: str, zone_id: str) -> ZoneRuntime:
        try:
            return self.zones[zone_id]
        except KeyError:
            raise Missing(operation, f"zone {zone_id}", "there is none") from None

    def workload(self, operation: str, workload_id: str) -> WorkloadRuntime:
        """A workload that callers can see."""
        runtime = self.workloads.get(workload_id)
        if runtime is None or runtime.workload.state is WorkloadState.CREATING:
            raise Missing(operation, f"workload {workload_id}", "there is none")
        return runtime

    def visible_workloads(self, zone_id: str = "") -> list[Workload]:
        return [
            runtime.workload
            for runtime in self.workloads.values()
            if runtime.workload.state is not WorkloadState.CREATING and zone_id in ("", runtime.zone.id)
        ]

    def put_zone(self, runtime: ZoneRuntime, zone: Zone, intent: Intent | None = None) -> None:
        """Record, then believe, then tell."""
        self.store.save_zone(zone, intent)
        runtime.zone = zone
        self.hub.publish(ZoneSeen(zone, runtime.connected))

    def note_zone(self, runtime: ZoneRuntime, zone: Zone, intent: Intent | None = None) -> None:
        """Record something that is so in any case: a store that fails does not make it untrue.

        The next start finds it out again, from the hypervisor or the agent.
        """
        try:
            self.store.save_zone(zone, intent)
        except Fault as fault:
            log.error("not recorded: %s", fault, extra=fields(zone=zone.id, state=zone.state.value))
        runtime.zone = zone
        self.hub.publish(ZoneSeen(zone, runtime.connected))

    def put_workload(
        self, runtime: WorkloadRuntime, workload: Workload, intent: Intent | None = None
    ) -> None:
        """Record, then believe, then tell."""
        self.store.save_workload(workload, intent)
        self._believe(runtime, workload)

    def note_workload(self, runtime: WorkloadRuntime, workload: Workload) -> None:
        """As ``note_zone``; an intent that is recorded stays."""
        try:
            self.store.update_workload(workload)
        except Fault as fault:
            state = workload.state.value
            log.error("not recorded: %s", fault, extra=fields(workload=workload.id, state=state))
        self._believe(runtime, workload)

    def _believe(self, runtime: WorkloadRuntime, workload: Workload) -> None:
        runtime.workload = workload
        if workload.state is WorkloadState.EXITED:
            runtime.settled.set()
        if workload.state is not WorkloadState.CREATING:
            self.hub.publish(WorkloadSeen(workload))

    def drop_workload(self, runtime: WorkloadRuntime, *, recorded: bool = True) -> None:
        """Forget a workload of which nothing is left."""
        if recorded:
            self.store.forget_workload(runtime.id)
        runtime.gone = True
        runtime.settled.set()
        runtime.zone.workloads.pop(runtime.id, None)
        if self.workloads.pop(runtime.id, None) and runtime.workload.state is not WorkloadState.CREATING:
            self.hub.publish(WorkloadGone(runtime.id))

    def drop_zone(self, runtime: ZoneRuntime) -> None:
        """Forget a zone of which nothing is left, and its workloads."""
        self.store.forget_zone(runtime.id)
        for workload in list(runtime.workloads.values()):
            self.drop_workload(workload, recorded=False)
        self.ledger.release(runtime.id)
        if self.zones.pop(runtime.id, None):
            self.hub.publish(ZoneGone(runtime.id))

    def stop(self) -> None:
        """Let go of every caller who would wait for long."""
        self.stopping.declare("protectd is stopping")
        for zone in self.zones.values():
            for run in zone.execs.values():
                run.fail(Unreachable("exec", f"workload {run.workload_id}", "protectd is stopping"))
        self.hub.close()

    def zone_dir(self, zone_id: str) -> Path:
        """Where the journals of a zone's logs are."""
        return self.config.run_dir / "zones" / zone_id

    def journal(self, runtime: WorkloadRuntime) -> Path:
        return self.zone_dir(runtime.zone.id) / f"{runtime.id}.journal"

    def clear_zone_dir(self, zone_id: str) -> None:
        shutil.rmtree(self.zone_dir(zone_id), ignore_errors=True)

    def _everything(self) -> Iterable[Change]:
        for runtime in self.zones.values():
            yield ZoneSeen(runtime.zone, runtime.connected)
        for workload in self.visible_workloads():
            yield WorkloadSeen(workload)


def now_ns() -> int:
    """The host's clock, ns since the epoch."""
    return time.time_ns()
