"""Callers' views of reservations, and the remaining capacity."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protect.config import HostConfig, NamedDevice
from protect.zones.capacity import host_memory
from tests.support.observe.messages import next_message
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import TIMEOUT, Served, served
from tests.support.protect.zones import failing
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import reservations_pb2 as rpb

MIB = 1 << 20
CLAIM = "6f1c2a0e-5a1f-4a52-9d4f-0f5b8a0c7d11"
POD = "0b6b7f0e-33a5-4a6f-8f6e-2f4be1a0d6aa"
OVERHEAD = 8 * MIB


@pytest.fixture
async def node(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Served]:
    """4096 MiB are for zones."""
    toolstack.overhead = OVERHEAD
    async with served(tmp_path, toolstack) as made:
        yield made


async def make(
    node: Served, reservation: str = CLAIM, memory: int = 512 * MIB, *pods: str, vcpus: int = 0
) -> rpb.Reservation:
    request = rpb.MakeReservationRequest(id=reservation, memory_bytes=memory, vcpus=vcpus, pod_uids=pods)
    return await node.clients.reservations.MakeReservation(request, timeout=TIMEOUT)


async def release(node: Served, reservation: str = CLAIM) -> None:
    request = rpb.ReleaseReservationRequest(id=reservation)
    await node.clients.reservations.ReleaseReservation(request, timeout=TIMEOUT)


async def listed(node: Served) -> list[rpb.Reservation]:
    request = rpb.ListReservationsRequest()
    answer = await node.clients.reservations.ListReservations(request, timeout=TIMEOUT)
    return list(answer.reservations)


async def free(node: Served) -> int:
    return (await node.clients.host.Info(pb.InfoRequest(), timeout=TIMEOUT)).memory.free_bytes


async def test_a_reservation_is_made_bound_and_released(node: Served) -> None:
    made = await make(node, vcpus=2)
    assert made.created_at_ns and made.overhead_bytes == OVERHEAD
    assert await free(node) == (4096 - 512 - 8) * MIB
    request = rpb.BindReservationRequest(id=CLAIM, pod_uid=POD)
    for _ in range(2):
        bound = await node.clients.reservations.BindReservation(request, timeout=TIMEOUT)
        assert (list(bound.pod_uids), bound.memory_bytes, bound.vcpus) == ([POD], 512 * MIB, 2)
    assert await listed(node) == [bound]
    for _ in range(2):
        await release(node)
    assert await listed(node) == [] and await free(node) == 4096 * MIB
    async with failing(grpc.StatusCode.NOT_FOUND):
        await node.clients.reservations.BindReservation(request, timeout=TIMEOUT)


async def test_a_total_includes_the_domains_own_memory(node: Served) -> None:
    request = rpb.MakeReservationRequest(id=CLAIM, total_bytes=512 * MIB, claim="default/web-zone")
    for pods in ((), (POD,)):
        request.pod_uids[:] = pods
        made = await node.clients.reservations.MakeReservation(request, timeout=TIMEOUT)
        assert (made.memory_bytes, list(made.pod_uids)) == (512 * MIB - OVERHEAD, list(pods))
        assert made.claim == "default/web-zone"
    assert await free(node) == (4096 - 512) * MIB
    for total, memory in ((OVERHEAD, 0), (MIB, MIB), (0, 0)):
        request = rpb.MakeReservationRequest(id="other", total_bytes=total, memory_bytes=memory)
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await node.clients.reservations.MakeReservation(request, timeout=TIMEOUT)


async def test_a_claim_fits_up_to_the_capacity(node: Served) -> None:
    """All capacity can be claimed, with any number of claims."""
    for number in range(8):
        request = rpb.MakeReservationRequest(id=f"claim-{number}", total_bytes=512 * MIB)
        await node.clients.reservations.MakeReservation(request, timeout=TIMEOUT)
    assert await free(node) == 0


async def test_a_repeated_reservation_adds_pods_and_never_bytes(node: Served) -> None:
    first = await make(node, CLAIM, 512 * MIB, POD)
    assert await make(node, CLAIM, 512 * MIB) == first
    assert (await make(node, CLAIM, 512 * MIB, "other", POD)).pod_uids == [POD, "other"]
    for memory, vcpus in ((513 * MIB, 0), (512 * MIB, 1)):
        async with failing(grpc.StatusCode.ALREADY_EXISTS) as said:
            await make(node, memory=memory, vcpus=vcpus)
        assert f"there is one of {512 * MIB} bytes and 0 vCPUs, asked are {memory} and {vcpus}" in said[0]
    assert await free(node) == (4096 - 520) * MIB
    same = await asyncio.gather(*(make(node, "twin", 64 * MIB) for _ in range(5)))
    assert len({one.created_at_ns for one in same}) == 1
    assert await free(node) == (4096 - 520 - 72) * MIB


async def test_reservation_beyond_the_capacity_is_refused_with_figures(node: Served) -> None:
    tries = [make(node, f"claim-{number}", 1016 * MIB) for number in range(6)]
    made = await asyncio.gather(*tries, return_exceptions=True)
    assert [isinstance(one, rpb.Reservation) for one in made].count(True) == 4
    refused = next(one for one in made if isinstance(one, grpc.aio.AioRpcError))
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "it needs 1024 MiB, free are 0 MiB of 4096 MiB" in (refused.details() or "")
    async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
        await node.create_zone(resources=pb.ZoneResources(memory_bytes=64 * MIB))
    assert "0 zones and 4 reservations have 4096 MiB" in said[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_bytes": 0},
        {"memory_bytes": 1 << 60},
        {"vcpus": 1025},
        {"id": ""},
        {"id": "../claim"},
        {"pod_uids": [""]},
        {"pod_uids": ["a b"]},
        {"pod_uids": [f"pod-{number}" for number in range(33)]},
        {"claim": "default/a b"},
        {"claim": "x" * 321},
    ],
)
async def test_nonsense_is_refused(node: Served, wrong: dict[str, object]) -> None:
    values: dict[str, object] = {"id": CLAIM, "memory_bytes": MIB} | wrong
    async with failing(grpc.StatusCode.INVALID_ARGUMENT):
        await node.clients.reservations.MakeReservation(
            rpb.MakeReservationRequest(**values),  # type: ignore[arg-type]
            timeout=TIMEOUT,
        )
    assert await listed(node) == []


async def test_pods_of_a_reservation_are_bounded(node: Served) -> None:
    await make(node, CLAIM, MIB, *(f"pod-{number}" for number in range(32)))
    async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED):
        await make(node, CLAIM, MIB, "one-more")


async def test_a_zone_has_the_reserved_size_of_its_pod(node: Served, toolstack: MemoryToolstack) -> None:
    await make(node, CLAIM, 512 * MIB, POD, vcpus=3)
    zone = await node.create_zone(pod_uid=POD, resources=pb.ZoneResources(memory_bytes=300 * MIB))
    assert (zone.resources.memory_bytes, zone.resources.vcpus) == (512 * MIB, 3)
    assert toolstack.of_zone("z1").spec.memory_bytes == 512 * MIB
    assert await free(node) == (4096 - 520) * MIB, "the zone's memory is the reserved one"
    assert (await listed(node))[0].zone_id == "z1"
    async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
        await node.create_zone("z2", pod_uid=POD)
    assert f"zone z1 has reservation {CLAIM}" in said[0]
    await node.clients.zones.DestroyZone(pb.DestroyZoneRequest(id="z1"), timeout=TIMEOUT)
    assert await free(node) == (4096 - 520) * MIB, "the next attempt's"
    await node.create_zone("z2", pod_uid=POD)
    await release(node)
    assert await free(node) == (4096 - 520) * MIB, "z2 runs, and has it"
    await node.clients.zones.DestroyZone(pb.DestroyZoneRequest(id="z2"), timeout=TIMEOUT)
    assert await free(node) == 4096 * MIB


async def test_reservations_of_a_pod_are_added(node: Served) -> None:
    await make(node, "first", 256 * MIB, POD, vcpus=1)
    await make(node, "second", 128 * MIB, POD, vcpus=1)
    zone = await node.create_zone(pod_uid=POD)
    assert (zone.resources.memory_bytes, zone.resources.vcpus) == (384 * MIB, 2)
    assert [one.zone_id for one in await listed(node)] == ["z1", "z1"]


async def test_a_pod_beyond_its_reservation_is_refused(node: Served) -> None:
    await make(node, CLAIM, 512 * MIB, POD, vcpus=2)
    for asked, what in (
        (pb.ZoneResources(memory_bytes=513 * MIB), "513 MiB of memory"),
        (pb.ZoneResources(vcpus=3), "3 vCPUs"),
    ):
        async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
            await node.create_zone(pod_uid=POD, resources=asked)
        assert f"it asks for {what}, reserved for its pod are 512 MiB and 2 vCPUs ({CLAIM})" in said[0]
    zone = await node.create_zone(pod_uid="nobody-s", resources=pb.ZoneResources(memory_bytes=513 * MIB))
    assert zone.resources.memory_bytes == 513 * MIB, "it lives from the rest"


async def test_reservations_and_their_zones_survive_a_restart(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    toolstack.overhead = OVERHEAD
    async with served(tmp_path, toolstack) as node:
        before = await make(node, CLAIM, 512 * MIB, POD, vcpus=1)
        await make(node, "unbound", 64 * MIB)
        await node.create_zone(pod_uid=POD)
    async with served(tmp_path, toolstack) as node:
        found = {one.id: one for one in await listed(node)}
        before.zone_id = "z1"
        assert found[CLAIM] == before and set(found) == {CLAIM, "unbound"}
        assert await free(node) == (4096 - 520 - 72) * MIB
        await node.clients.zones.DestroyZone(pb.DestroyZoneRequest(id="z1"), timeout=TIMEOUT)
        assert await free(node) == (4096 - 520 - 72) * MIB


async def test_the_capacity_is_watched(
    tmp_path: Path, toolstack: MemoryToolstack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also memory of foreign domains, which grow without a report."""
    monkeypatch.setattr(host_memory, "PERIOD_SECONDS", 0.05)
    toolstack.overhead = OVERHEAD
    async with served(tmp_path, toolstack) as node:
        await _watched(node, toolstack)


async def _watched(node: Served, toolstack: MemoryToolstack) -> None:
    watch = node.clients.reservations.WatchCapacity(rpb.WatchCapacityRequest())
    first = await next_message(watch)
    assert (first.total_bytes, first.free_bytes, first.dom0_bytes) == (4096 * MIB, 4096 * MIB, 1 << 30)
    await make(node)
    made = await next_message(watch)
    assert (made.free_bytes, made.reservations_bytes) == (3576 * MIB, 520 * MIB)
    assert (first.reservation_count, made.reservation_count) == (0, 1)
    toolstack.host_memory, toolstack.foreign_memory = 4096 * MIB, 3000 * MIB
    taken = await next_message(watch)
    assert (taken.foreign_bytes, taken.total_bytes, taken.free_bytes) == (3000 * MIB, 1096 * MIB, 576 * MIB)
    watch.cancel()


async def test_memory_taken_by_other_domains_is_seen_by_the_next_create(
    node: Served, toolstack: MemoryToolstack
) -> None:
    toolstack.host_memory = 4096 * MIB
    await node.create_zone()
    toolstack.foreign_memory = 3600 * MIB
    async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
        await node.create_zone("z2")
    assert "free are 232 MiB of 496 MiB" in said[0] and "other domains 3600 MiB" in said[0]


async def test_origin_of_a_reservation_is_kept(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async def made(node: Served, origin: str) -> str:
        request = rpb.MakeReservationRequest(id=CLAIM, memory_bytes=64 * MIB, origin=origin)
        return (await node.clients.reservations.MakeReservation(request, timeout=TIMEOUT)).origin

    async with served(tmp_path, toolstack) as node:
        assert [await made(node, origin) for origin in ("", "memory-1", "memory-2", "")] == [
            "",
            *["memory-1"] * 3,
        ]
        with pytest.raises(grpc.aio.AioRpcError, match="origin id"):
            await made(node, "a b")
    async with served(tmp_path, toolstack) as node:
        assert [one.origin for one in await listed(node)] == ["memory-1"]


async def test_devices_are_reserved_for_a_pod(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async def made(node: Served, reservation: str, *devices: str, **more: object) -> rpb.Reservation:
        request = rpb.MakeReservationRequest(id=reservation, devices=devices, **more)  # type: ignore[arg-type]
        return await node.clients.reservations.MakeReservation(request, timeout=TIMEOUT)

    async def attach(node: Served) -> None:
        request = pb.AttachDeviceRequest(zone_id="other", device="fast")
        await node.clients.devices.AttachDevice(request, timeout=TIMEOUT)

    host = HostConfig(devices={"fast": NamedDevice("/dev/nvme0n1"), "slow": NamedDevice("/dev/sda")})
    async with served(tmp_path, toolstack, host) as node:
        for _ in range(2):
            assert list((await made(node, CLAIM, "fast", pod_uids=[POD])).devices) == ["fast"]
        for name, devices, status in (
            ("b", ["fast"], grpc.StatusCode.FAILED_PRECONDITION),
            ("b", ["none"], grpc.StatusCode.NOT_FOUND),
            (CLAIM, ["slow"], grpc.StatusCode.ALREADY_EXISTS),
        ):
            async with failing(status):
                await made(node, name, *devices)
        await node.create_zone("other")
        async with failing(grpc.StatusCode.FAILED_PRECONDITION):
            await attach(node)
        # A reservation without memory says nothing of the zone's size.
        await node.create_zone("z1", pod_uid=POD, resources=pb.ZoneResources(memory_bytes=128 * MIB))
        assert [str(one.path) for one in toolstack.of_zone("z1").disks.values() if one.exclusive] == [
            "/dev/nvme0n1"
        ]
        await release(node)
        async with failing(grpc.StatusCode.FAILED_PRECONDITION):
            await made(node, "b", "fast")  # the zone still has the memory
        await node.clients.zones.DestroyZone(pb.DestroyZoneRequest(id="z1"), timeout=TIMEOUT)
        assert (await made(node, "b", "fast", memory_bytes=64 * MIB)).memory_bytes == 64 * MIB
    async with served(tmp_path, toolstack, host) as node:
        assert [(one.id, list(one.devices)) for one in await listed(node)] == [("b", ["fast"])]
