"""Any order of operations, failures, deaths and restarts: the books stay right, and nothing is left."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemonkit.faults import Fault
from protect.assembly import Assembly
from protect.model.container import ImageFilesystem, WorkloadSpec
from protect.model.toolstack import DomainState
from protect.model.workload import WorkloadState
from protect.model.zone import ZoneState
from protect.workloads import start
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import CALL, running, served, workload_spec, zone_spec
from tests.support.waiting import until

ZONES = ("a", "b")
WORKLOADS = ("u", "v", "w")
zone_ids = st.sampled_from(ZONES)
pairs = st.tuples(zone_ids, st.sampled_from(WORKLOADS))
operations = st.one_of(
    st.tuples(st.just("launch"), zone_ids),
    st.tuples(st.just("destroy"), zone_ids),
    st.tuples(st.just("kill"), zone_ids),
    st.tuples(st.just("cut"), zone_ids),
    st.tuples(st.just("create"), pairs),
    st.tuples(st.just("start"), pairs),
    st.tuples(st.just("end"), pairs),
    st.tuples(st.just("delete"), pairs),
    st.tuples(
        st.just("fail"), st.sampled_from(["create", "unpause", "attach_disk", "detach_disk", "destroy"])
    ),
    st.tuples(st.just("leave"), st.integers(0, 24)),
    st.tuples(st.just("heal"), st.none()),
    st.tuples(st.just("pause"), st.none()),
    st.tuples(st.just("restart"), st.none()),
)


class World:
    """Daemons in succession on the same domains."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.toolstack = MemoryToolstack()
        self.stack = AsyncExitStack()
        self.protectd: Assembly
        self.background: list[asyncio.Task[object]] = []

    async def restart(self) -> None:
        await self.stack.aclose()
        await asyncio.gather(*self.background, return_exceptions=True)
        self.background.clear()
        self.protectd = await self.stack.enter_async_context(running(self.folder, self.toolstack))

    async def do(self, verb: str, what: object) -> None:
        protectd, toolstack = self.protectd, self.toolstack
        alive = {one.spec.environment["XENPOD_ZONE"]: one for one in toolstack.domains.values()}
        match verb, what:
            case "launch", str(zone):
                self._begin(protectd.launcher.launch(zone_spec(zone)))
            case "destroy", str(zone):
                self._begin(protectd.removal.destroy(zone))
            case "kill", str(zone) if zone in alive and alive[zone].state is DomainState.RUNNING:
                toolstack.kill(zone)
            case "cut", str(zone) if zone in alive:
                alive[zone].agent.cut()
            case "create", (str(zone), str(name)):
                self._begin(protectd.creation.create(self._spec(zone, name)))
            case "start", (str(zone), str(name)):
                self._begin(start.start(protectd.registry, protectd.ports.volumes, f"{zone}-{name}"))
            case "end", (str(zone), str(name)) if zone in alive:
                self._end(alive[zone].agent, f"{zone}-{name}")
            case "delete", (str(zone), str(name)):
                self._begin(protectd.workload_removal.delete(f"{zone}-{name}"))
            case "leave", int(number) if number < len(self.background):
                # The client of a call goes away, and the call's work is undone or goes on by itself.
                self.background[number].cancel()
            case "fail", str(step):
                toolstack.failing.add(step)
            case "heal", _:
                toolstack.failing.clear()
            case "pause", _:
                await asyncio.sleep(0.01)
            case "restart", _:
                await self.restart()
        await asyncio.sleep(0)

    def _spec(self, zone: str, name: str) -> WorkloadSpec:
        """Workloads share disks: u has one, v two, w all three."""
        files = [self.folder / f"layer{number}" for number in range(1 + WORKLOADS.index(name))]
        for file in files:
            file.touch()
        stack = tuple(ImageFilesystem(file, "squashfs") for file in files)
        return replace(workload_spec(self.folder, f"{zone}-{name}", zone), stack=stack)

    def _begin(self, work: object) -> None:
        """Begin an operation as the server does, without awaiting it: operations overlap."""
        assert asyncio.iscoroutine(work)
        self.background.append(served(self.protectd, work))

    @staticmethod
    def _end(agent: object, name: str) -> None:
        from tests.support.agent.agent_sim import SimAgent

        assert isinstance(agent, SimAgent)
        process = agent.processes.get((name, ""))
        if process is not None and not process.HasField("exited"):
            agent.end(process.created.stdout_stream)
            agent.end(process.created.stderr_stream)
            agent.exit(name, 3)

    async def settle(self) -> None:
        self.toolstack.failing.clear()
        results = await asyncio.gather(*self.background, return_exceptions=True)
        for result in results:
            assert result is None or not isinstance(result, Exception) or isinstance(result, Fault), repr(
                result
            )
        self.background.clear()
        await until(
            lambda: not [task for task in self.protectd.lifetime.tasks._tasks if task.get_name() == CALL]
        )
        await until(self._quiet)

    def _quiet(self) -> bool:
        """No zone is in transition."""
        settled = (ZoneState.RUNNING, ZoneState.DEAD, ZoneState.DESTROYING)
        dead = {one.spec.uuid for one in self.toolstack.domains.values() if one.reason is not None}
        return all(
            zone.zone.state in settled
            and (zone.zone.state is not ZoneState.RUNNING or (zone.connected and zone.zone.uuid not in dead))
            for zone in self.protectd.registry.zones.values()
        )

    def check_books(self) -> None:
        protectd = self.protectd
        saved = protectd.registry.store.load()
        assert {zone.id: zone.state for zone in saved.zones} == {
            zone.id: zone.zone.state for zone in protectd.registry.zones.values()
        }
        assert {one.id: one.state for one in saved.workloads} == {
            one.id: one.workload.state for one in protectd.registry.workloads.values()
        }
        assert set(saved.workload_intents) <= set(protectd.registry.workloads)
        running_zones = [
            zone for zone in protectd.registry.zones.values() if zone.zone.state is ZoneState.RUNNING
        ]
        assert protectd.ledger.reserved_bytes >= sum(zone.zone.spec.memory_bytes for zone in running_zones)
        for zone in running_zones:
            attached = self.toolstack.of_zone(zone.id).disks
            for one in zone.workloads.values():
                if not one.deleting:
                    behind = [(disk.file, attached[disk.vdev].path.stat()) for disk in one.workload.disks]
                    assert all(file == (there.st_dev, there.st_ino) for file, there in behind)
            assert set(attached) == {
                disk.vdev for one in zone.workloads.values() for disk in one.workload.disks
            }
        for one in protectd.registry.workloads.values():
            if one.zone.zone.state is ZoneState.DEAD:
                assert one.workload.state in (WorkloadState.EXITED, WorkloadState.CREATING)

    async def remove_all(self) -> None:
        for zone in list(self.protectd.registry.zones):
            await self.protectd.removal.destroy(zone)
        saved = self.protectd.registry.store.load()
        assert not (saved.zones or saved.workloads or saved.zone_intents or saved.workload_intents)
        assert not self.toolstack.domains and not self.protectd.ledger.reserved_bytes
        assert not self.protectd.registry.workloads and not self.protectd.registry.zones
        assert not list((self.folder / "run").glob("zones/*"))


async def _play(folder: Path, script: list[tuple[str, object]]) -> None:
    world = World(folder)
    await world.restart()
    try:
        for verb, what in script:
            await world.do(verb, what)
        await world.settle()
        world.check_books()
        await world.restart()
        await world.settle()
        world.check_books()
        await world.remove_all()
        for domain in world.toolstack.domains.values():
            assert domain.agent.faults == []
    finally:
        await world.stack.aclose()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(operations, min_size=3, max_size=25))
def test_any_order_keeps_the_books(script: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_play(Path(folder), script))
