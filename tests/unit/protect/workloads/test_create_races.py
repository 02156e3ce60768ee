"""Leaving callers, late answers, failing adoptions: over agents in memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from daemonkit.faults import Refused
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from daemonkit.tasks import race
from protect.__main__ import claim
from protect.assembly import Assembly
from protect.channel import table
from protect.config import ProtectdConfig
from protect.model.container import ExecSpec
from protect.model.lifetime import End
from protect.model.workload import WorkloadState
from protect.model.zone import ZoneState
from protect.workloads import start
from protect.workloads.exec import Output
from protect.workloads.terminal import Command
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import (
    MemoryVolumes,
    hasten,
    running,
    served,
    workload_spec,
    zone_spec,
)
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2, protect_pb2_grpc


async def nothing_to_say() -> AsyncIterator[Command]:
    await asyncio.Event().wait()
    yield  # type: ignore[misc]  # never comes


async def first(outputs: AsyncIterator[Output]) -> Output:
    return await anext(outputs)


async def all_that_can_go_on() -> None:
    """Work without waiting gets far more turns than needed, on any slow machine."""
    for _ in range(100):
        await asyncio.sleep(0)


def execs_in(agent: SimAgent) -> list[str]:
    return [exec_id for _, exec_id in agent.processes if exec_id]


async def test_a_start_of_a_gone_caller_is_known(protectd: Assembly, agent: SimAgent, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    agent.reading.clear()
    starting = served(protectd, start.start(protectd.registry, protectd.ports.volumes, "w1"))
    await until(lambda: "start_container" in agent.delivered)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    agent.reading.set()
    await until(lambda: protectd.registry.workloads["w1"].workload.state is WorkloadState.RUNNING)
    assert protectd.registry.store.load().workloads[0].state is WorkloadState.RUNNING


async def test_an_exec_of_a_gone_caller_is_not_requested(
    protectd: Assembly, agent: SimAgent, tmp_path: Path
) -> None:
    """The exec waits for the list of streams of a new connection, and is removed after its creation."""
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")

    def greet_and_pause(agent: SimAgent, hello: pb.Hello) -> bytes:
        agent.reading.clear()
        return agent.hello()

    agent.greeting = greet_and_pause
    agent.cut()
    await until(lambda: not agent.reading.is_set())
    await until(lambda: protectd.registry.zones["z1"].connected)
    asking = asyncio.create_task(first(protectd.execs.execute(ExecSpec("w1", b"{}"), nothing_to_say())))
    await all_that_can_go_on()
    asking.cancel()
    await all_that_can_go_on()
    agent.reading.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: any(request.HasField("exec_process") for request in agent.requests))
    await until(lambda: not protectd.registry.zones["z1"].execs)
    assert execs_in(agent) == []


async def test_abandoned_execs_use_nothing_up(
    protectd: Assembly, agent: SimAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent forgets the streams of a removed exec; the host must do the same."""
    await protectd.creation.create(workload_spec(tmp_path, stdin=True))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    monkeypatch.setattr(table, "MOST_STREAMS", 12)
    for _ in range(12):
        spec = ExecSpec("w1", b"{}", stdin=True)
        leaving = asyncio.create_task(first(protectd.execs.execute(spec, nothing_to_say())))
        await until(lambda: execs_in(agent) != [])
        await asyncio.sleep(0.005)
        leaving.cancel()
        await asyncio.wait([leaving])
        await until(lambda: execs_in(agent) == [] and not protectd.registry.zones["z1"].execs)
        assert protectd.registry.zones["z1"].connected
    assert protectd.registry.zones["z1"].zone.state is ZoneState.RUNNING


async def test_a_first_failure_of_an_adoption_loses_no_output(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path, "w1"))
        await protectd.creation.create(workload_spec(tmp_path, "w2"))
        await start.start(protectd.registry, protectd.ports.volumes, "w1")
        damaged = protectd.dirs.journal(protectd.registry.workloads["w2"])
    kept = damaged.read_bytes()
    damaged.write_bytes(b"")
    agent = toolstack.of_zone("z1").agent
    async with running(tmp_path, toolstack) as protectd:
        link = None

        def tried_again() -> bool:
            nonlocal link
            made = protectd.registry.zones["z1"].client._link
            link = link or (made and made._streams)  # type: ignore[attr-defined]
            return made is not None and made._streams is not link  # type: ignore[attr-defined]

        await until(tried_again)
        damaged.write_bytes(kept)
        await until(lambda: protectd.registry.zones["z1"].client.serving, 10)
        stdout = agent.processes["w1", ""].created.stdout_stream
        agent.write(stdout, b"still heard\n")
        await until(lambda: "still heard" in (tmp_path / "w1.log").read_text())
        assert not agent.outputs[stdout].forgotten
        assert agent.faults == []


async def test_a_launch_ended_twice_leaves_no_domain(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    """The zone is destroyed during its creation, and then the creating caller goes away, too."""
    async with running(tmp_path, toolstack) as protectd:
        entered, go = toolstack.gate("create")
        launching = served(protectd, protectd.launcher.launch(zone_spec()))
        await entered.wait()
        destroying = served(protectd, protectd.removal.destroy("z1"))
        await all_that_can_go_on()
        launching.cancel()
        await all_that_can_go_on()
        go.set()
        await asyncio.wait([launching, destroying])
        await until(lambda: not protectd.registry.zones)
        assert toolstack.domains == {}
        assert protectd.ledger.reserved_bytes == 0


async def test_a_gone_client_leaves_no_zone(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    """Over the real server: its stop cancels the call again, and the undo is never cut."""
    async with running(tmp_path, toolstack) as protectd:
        path = tmp_path / "socket"
        created, create_on = toolstack.gate("create")
        destroyed, destroy_on = toolstack.gate("destroy")
        serving = serve_unix(
            path, protectd.add_services, name="test", grace=0.0, tasks=protectd.lifetime.tasks
        )
        async with asyncio.timeout(60), channel(path) as link:
            async with serving:
                stub = protect_pb2_grpc.ZonesStub(link)
                call = stub.CreateZone(protect_pb2.CreateZoneRequest(id="z1", name="web"))
                await created.wait()
                call.cancel()
                for _ in range(
                    20
                ):  # later calls: the server has heard of the cancellation before the create goes on
                    await stub.ListZones(protect_pb2.ListZonesRequest())
                create_on.set()
                await destroyed.wait()
            assert list(protectd.registry.zones) == ["z1"]
            destroy_on.set()
            await protectd.lifetime.tasks.close(60)
        assert toolstack.destroyed == ["z1"] and not toolstack.domains
        assert not protectd.registry.zones and not protectd.ledger.reserved_bytes
        saved = protectd.registry.store.load()
        assert not saved.zones and not saved.zone_intents


async def test_a_gone_client_leaves_no_workload(
    protectd: Assembly, agent: SimAgent, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    """The client goes while the agent prepares the container, and again during the undo."""
    agent.reading.clear()
    creating = served(protectd, protectd.creation.create(workload_spec(tmp_path, stdin=True)))
    # The create opens the log in a thread first: an attached disk does not prove that the agent was asked.
    await until(lambda: toolstack.of_zone("z1").disks and "create_container" in agent.delivered)
    creating.cancel()
    await all_that_can_go_on()
    creating.cancel()
    agent.reading.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await until(lambda: not protectd.registry.workloads)
    assert any(request.HasField("create_container") for request in agent.requests)
    assert not agent.processes and not toolstack.of_zone("z1").disks
    saved = protectd.registry.store.load()
    assert not saved.workloads and not saved.workload_intents
    assert all(output.forgotten for output in agent.outputs.values())


async def test_a_destroy_during_the_wait_for_the_agent_ends_the_launch(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    toolstack.agent_ready = False
    async with running(tmp_path, toolstack) as protectd:
        hasten(protectd, boot=600.0)
        launching = served(protectd, protectd.launcher.launch(zone_spec()))
        await until(
            lambda: "z1" in protectd.registry.zones and protectd.registry.zones["z1"].client._link is not None
        )
        async with asyncio.timeout(60):
            await protectd.removal.destroy("z1")
        with pytest.raises(Refused, match="being destroyed"):
            await launching
        assert not protectd.registry.zones and toolstack.domains == {} and toolstack.destroyed == ["z1"]


async def test_a_destroy_before_the_domain_exists_ends_the_launch(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    """Then no zone is made."""
    volumes = SlowVolumes(tmp_path / "volumes")
    entered, go = toolstack.gate("create")
    go.set()
    async with running(tmp_path, toolstack, volumes=volumes) as protectd:
        launching = served(protectd, protectd.launcher.launch(zone_spec()))
        await volumes.opening.wait()
        destroying = served(protectd, protectd.removal.destroy("z1"))
        await all_that_can_go_on()
        volumes.may_open.set()
        await destroying
        with pytest.raises(Refused, match="being destroyed"):
            await launching
        assert not entered.is_set() and not protectd.registry.zones and volumes.zones() == []


class SlowVolumes(MemoryVolumes):
    """``open`` waits."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opening, self.may_open = asyncio.Event(), asyncio.Event()

    async def open(self, zone_id: str) -> None:
        self.opening.set()
        await self.may_open.wait()
        await super().open(zone_id)


async def test_destroy_and_delete_finish_after_a_cancelled_call(
    protectd: Assembly, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    """The caller may have gone for good."""
    await protectd.creation.create(workload_spec(tmp_path))
    steps: tuple[tuple[str, Collection[str], Callable[[], Coroutine[Any, Any, None]]], ...] = (
        ("detach_disk", protectd.registry.workloads, lambda: protectd.workload_removal.delete("w1")),
        ("destroy", protectd.registry.zones, lambda: protectd.removal.destroy("z1")),
    )
    for operation, left, asked in steps:
        entered, go = toolstack.gate(operation)
        asking = served(protectd, asked())
        await entered.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        go.set()
        await until(lambda left=left: not left)
    assert toolstack.domains == {}


async def test_an_unawaited_bounded_failure_is_not_an_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise Refused("try", "it", "on purpose")

    guarding = asyncio.create_task(race(fail(), End().raised("use", "z1")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    guarding.cancel()
    await asyncio.wait([guarding])
    del guarding
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.records == []


@pytest.mark.parametrize("shared", ["state", "run"])
async def test_second_protectd_on_the_same_directory_is_refused(tmp_path: Path, shared: str) -> None:
    """A second protectd on the same run directory would remove unknown zones as strays."""
    other = {"state": "run", "run": "state"}[shared]
    same = {f"{shared}_dir": tmp_path / shared}
    one = ProtectdConfig(**same, **{f"{other}_dir": tmp_path / "one"})  # type: ignore[arg-type]
    two = ProtectdConfig(**same, **{f"{other}_dir": tmp_path / "two"})  # type: ignore[arg-type]
    async with AsyncExitStack() as first:
        claim(one, first)
        async with AsyncExitStack() as second:
            with pytest.raises(Refused, match="another protectd runs on it"):
                claim(two, second)
    async with AsyncExitStack() as second:
        claim(two, second)


async def test_a_silent_zone_does_not_hold_up_a_stop(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
    toolstack.of_zone("z1").agent.available.clear()
    async with running(tmp_path, toolstack) as protectd:
        hasten(protectd, boot=600.0)
        await until(lambda: protectd.registry.zones["z1"].client._link is not None)
        protectd.stop()
        begun = asyncio.get_running_loop().time()
        await protectd.lifetime.tasks.close(30)
        assert asyncio.get_running_loop().time() - begun < 15
        assert protectd.registry.zones["z1"].zone.state is ZoneState.RUNNING
