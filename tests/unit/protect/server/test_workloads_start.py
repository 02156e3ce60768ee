"""Workloads with an impossible command: created, and ended by their start, in callers' views."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import TIMEOUT, Served, served
from tests.support.protect.zones import failing
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2
from xenpod_proto.protect.v1 import protect_pb2 as pb

COMMAND = b'{"process": {"args": ["nosuch", "-x"]}}'
CAUSE = "crun create: status 1: executable file not found"


@pytest.fixture
async def node(short_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Served]:
    async with served(short_path, toolstack) as node:
        await node.create_zone()
        refuse(node.agent())
        yield node


def refuse(agent: SimAgent, cannot_start: bool = True) -> None:
    agent.errors["create_container"] = channel_pb2.Error(code=9, message=CAUSE, cannot_start=cannot_start)


def asked(agent: SimAgent) -> set[str | None]:
    return {request.WhichOneof("op") for request in agent.requests}


async def test_the_start_fails_and_says_why(node: Served) -> None:
    """The volumes are given back at the failure; the log exists and is empty."""
    created = await node.create(oci_config=COMMAND, volumes=[pb.Volume(name="v", host_path="/srv")])
    assert (created.state, created.reason) == (pb.WORKLOAD_STATE_CREATED, "")
    assert node.volumes.attached["z1"] == {"w1": ["v"]}
    update = pb.UpdateWorkloadRequest(id="w1", resources=b"{}")
    await node.clients.workloads.UpdateWorkload(update, timeout=TIMEOUT)
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as failed:
        await node.start()
    assert "'nosuch'" in failed[0] and CAUSE in failed[0]
    ended = await node.wait()
    assert (ended.state, ended.exit_code, ended.reason) == (pb.WORKLOAD_STATE_EXITED, 128, "StartError")
    assert "'nosuch'" in ended.message and CAUSE in ended.message
    assert ended.started_at_ns == 0 < ended.created_at_ns < ended.finished_at_ns
    assert node.volumes.attached["z1"] == {}
    assert (node.folder / "w1.log").read_bytes() == b""
    assert not asked(node.agent()) & {"start_container", "update_container"}
    async with failing(grpc.StatusCode.FAILED_PRECONDITION):
        await node.start()


async def test_command_found_missing_at_the_start_ends_the_workload(node: Served) -> None:
    """As when the agent answers a creation before crun has ended."""
    agent = node.agent()
    agent.errors = {"start_container": agent.errors["create_container"]}
    await node.create(oci_config=COMMAND, volumes=[pb.Volume(name="v", host_path="/srv")])
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as failed:
        await node.start()
    assert "'nosuch'" in failed[0] and CAUSE in failed[0]
    ended = await node.wait()
    assert (ended.state, ended.exit_code, ended.reason) == (pb.WORKLOAD_STATE_EXITED, 128, "StartError")
    assert "'nosuch'" in ended.message and CAUSE in ended.message and ended.started_at_ns == 0
    assert node.volumes.attached["z1"] == {}


@pytest.mark.parametrize("started", [False, True])
async def test_workload_with_an_impossible_command_is_deleted(
    node: Served, toolstack: MemoryToolstack, started: bool
) -> None:
    await node.create()
    if started:
        async with failing(grpc.StatusCode.FAILED_PRECONDITION):
            await node.start()
    await node.clients.workloads.DeleteWorkload(pb.DeleteWorkloadRequest(id="w1"), timeout=TIMEOUT)
    assert not toolstack.of_zone("z1").disks
    node.agent().errors.clear()
    await node.create()
    assert (await node.start()).state == pb.WORKLOAD_STATE_RUNNING


async def test_workload_with_an_impossible_command_survives_a_reconnect(node: Served) -> None:
    """The zone has no trace of the workload, as expected."""
    await node.create(oci_config=COMMAND)
    agent, connections = node.agent(), node.agent().connections
    agent.cut()
    await until(lambda: agent.connections > connections)
    node.agent().errors.clear()
    await node.create("w2")
    assert (await node.get()).state == pb.WORKLOAD_STATE_CREATED
    async with failing(grpc.StatusCode.FAILED_PRECONDITION):
        await node.start()


async def test_a_restart_remembers_why(short_path: Path, toolstack: MemoryToolstack) -> None:
    async with served(short_path, toolstack) as node:
        await node.create_zone()
        refuse(node.agent())
        await node.create(oci_config=COMMAND)
        await node.create("w2", oci_config=COMMAND)
        async with failing(grpc.StatusCode.FAILED_PRECONDITION):
            await node.start("w2")
    async with served(short_path, toolstack) as node:
        async with failing(grpc.StatusCode.FAILED_PRECONDITION) as failed:
            await node.start()
        assert CAUSE in failed[0]
        for workload in ("w1", "w2"):
            ended = await node.get(workload)
            assert (ended.exit_code, ended.reason) == (128, "StartError") and CAUSE in ended.message


async def test_after_a_restart_the_start_may_still_find_out(
    short_path: Path, toolstack: MemoryToolstack
) -> None:
    """crun does not always name the command."""
    async with served(short_path, toolstack) as node:
        await node.create_zone()
        await node.create(oci_config=COMMAND)
        refuse(node.agent())
        node.agent().errors = {"start_container": node.agent().errors["create_container"]}
    async with served(short_path, toolstack) as node:
        async with failing(grpc.StatusCode.FAILED_PRECONDITION):
            await node.start()
        ended = await node.get()
        assert (ended.exit_code, ended.reason) == (128, "StartError")
        assert ended.message == f"cannot run 'nosuch': {CAUSE}"


async def test_another_failure_fails_the_create(node: Served, toolstack: MemoryToolstack) -> None:
    refuse(node.agent(), cannot_start=False)
    async with failing(grpc.StatusCode.FAILED_PRECONDITION):
        await node.create(oci_config=COMMAND)
    async with failing(grpc.StatusCode.NOT_FOUND):
        await node.get()
    assert not toolstack.of_zone("z1").disks
