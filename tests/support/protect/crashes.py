"""Kills protectd at a step, and starts protectd again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc.aio

import protect.__main__  # noqa: F401 - imports every step
from daemonkit import checkpoints
from tests.support.protect.zones import TIMEOUT, Zones
from tests.support.waiting import found, until
from xenpod_proto.protect.v1 import protect_pb2 as pb

T = TypeVar("T")


def steps(*operations: str) -> list[str]:
    found = [name for name in checkpoints.checkpoint_names() if name.split(".")[0] in operations]
    assert {name.split(".")[0] for name in found} == set(operations)
    return found


async def armed(zones: Zones, step: str) -> None:
    """Restart protectd with a kill at the step."""
    await zones.protectd.daemon.stop()
    zones.protectd.configure(faults={"kill_at": step})
    await zones.protectd.daemon.start()
    await connected(zones)


async def killed(zones: Zones, work: Awaitable[object]) -> None:
    """The work meets the step; protectd dies of it, and is started again without."""
    outcome = "it succeeded"
    try:
        await work
    except grpc.aio.AioRpcError as error:
        outcome = f"{error.code().name}: {error.details()}"
    try:
        status = await zones.protectd.daemon.ended()
    except TimeoutError:
        raise AssertionError(f"protectd never came to the step; {outcome}") from None
    assert status == -9, zones.protectd.daemon.tail()
    zones.protectd.configure(faults={})
    await zones.protectd.daemon.start()


async def connected(zones: Zones) -> None:
    """Every zone that runs has been adopted, and none is half made."""

    async def settled() -> bool:
        answer = await zones.clients.zones.ListZones(pb.ListZonesRequest(), wait_for_ready=True)
        states = {(zone.state, zone.channel_connected) for zone in answer.zones}
        return states <= {(pb.ZONE_STATE_RUNNING, True), (pb.ZONE_STATE_DEAD, False)}

    await until(settled)


async def once_undone(create: Callable[[], Awaitable[T]]) -> T:
    """An id is taken until the undoing, of which only the record may be left, has ended."""

    async def tried() -> tuple[T] | None:
        try:
            return (await create(),)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
                raise
            return None

    (result,) = await found(tried, TIMEOUT)
    return result


async def workloads(zones: Zones) -> dict[str, pb.Workload]:
    answer = await zones.clients.workloads.ListWorkloads(pb.ListWorkloadsRequest(), timeout=TIMEOUT)
    return {workload.id: workload for workload in answer.workloads}
