"""Reservations of the real daemon on the fake: killed at each step, rebooted, filled up at once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc
import grpc.aio
import pytest

import protect.__main__  # noqa: F401 - imports every step
from tests.support.observe.messages import next_message
from tests.support.protect.crashes import armed, connected, killed, once_undone, steps
from tests.support.protect.zones import TIMEOUT, Zones, needs_protectd
from tests.support.session.checkpoints import killed_at
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import reservations_pb2 as rpb

pytestmark = [pytest.mark.root, needs_protectd]
MIB = 1 << 20
TOTAL, OVERHEAD, EACH = 2048 * MIB, 8 * MIB, 248 * MIB
"""Eight zones of EACH fit with their overhead."""


async def small(zones: Zones, **more: object) -> None:
    """Restart protectd on a host of TOTAL bytes for zones."""
    await zones.protectd.daemon.stop()
    zones.protectd.configure(
        fake={"memory": TOTAL, "domain_overhead": OVERHEAD}, memory={"reserve": 0}, **more
    )
    await zones.protectd.daemon.start()
    await connected(zones)


async def make(zones: Zones, reservation: str, *pods: str, memory: int = EACH) -> rpb.Reservation:
    request = rpb.MakeReservationRequest(id=reservation, memory_bytes=memory, pod_uids=pods)
    return await zones.clients.reservations.MakeReservation(request, timeout=TIMEOUT)


async def listed(zones: Zones) -> dict[str, rpb.Reservation]:
    request = rpb.ListReservationsRequest()
    answer = await zones.clients.reservations.ListReservations(request, timeout=TIMEOUT, wait_for_ready=True)
    return {one.id: one for one in answer.reservations}


async def memory(zones: Zones) -> pb.MemoryLedger:
    return (await zones.clients.host.Info(pb.InfoRequest(), timeout=TIMEOUT, wait_for_ready=True)).memory


@pytest.mark.slow
@killed_at(steps("reservation-make", "reservation-bind", "reservation-release"))
async def test_killed_at_a_step(zones: Zones, step: str) -> None:
    """Answered requests hold; an unanswered request is done or not, and a retry completes the request."""
    await small(zones)
    await make(zones, "kept", "pod-k")
    await armed(zones, step)
    kept = (await listed(zones))["kept"]

    async def work() -> None:
        await make(zones, "claim", "pod-1")
        bind = rpb.BindReservationRequest(id="claim", pod_uid="pod-2")
        await zones.clients.reservations.BindReservation(bind, timeout=TIMEOUT)
        release = rpb.ReleaseReservationRequest(id="claim")
        await zones.clients.reservations.ReleaseReservation(release, timeout=TIMEOUT)

    await killed(zones, work())
    await connected(zones)
    found = await listed(zones)
    assert found["kept"] == kept
    pods = {
        "reservation-make.recorded": ["pod-1"],
        "reservation-bind.recorded": ["pod-1", "pod-2"],
        "reservation-release.recorded": None,
    }[step]
    assert (list(found["claim"].pod_uids) if "claim" in found else None) == pods
    assert (await memory(zones)).reserved_bytes == len(found) * (EACH + OVERHEAD)
    await work()
    assert await listed(zones) == {"kept": kept}
    assert (await memory(zones)).free_bytes == TOTAL - EACH - OVERHEAD


@pytest.mark.slow
@killed_at([step for step in steps("zone-create") if "scratch" not in step])
async def test_a_zone_from_a_reservation_killed_at_a_step(zones: Zones, step: str) -> None:
    """The reservation is there for the next attempt, and nothing is promised twice."""
    await small(zones)
    await make(zones, "claim", "pod-1")
    await armed(zones, step)
    await killed(zones, zones.create_zone(pod_uid="pod-1"))
    await connected(zones)
    if step != "zone-create.running":
        await once_undone(lambda: zones.create_zone(pod_uid="pod-1"))
    assert (await listed(zones))["claim"].zone_id == "z1"
    assert (await memory(zones)).free_bytes == TOTAL - EACH - OVERHEAD
    await zones.run("/bin/true")
    assert (await zones.wait()).exit_code == 0


async def test_reservations_survive_a_reboot_and_their_zones_do_not(zones: Zones) -> None:
    await small(zones)
    await make(zones, "claim", "pod-1")
    zone = await zones.create_zone(pod_uid="pod-1")
    assert zone.resources.memory_bytes == EACH
    await zones.protectd.daemon.crash()
    os.kill(zone.domain_id, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{zone.domain_id}").exists())
    await zones.protectd.daemon.start()
    await connected(zones)

    async def lost() -> bool:
        return not (await listed(zones))["claim"].zone_id

    await until(lost)
    assert (await listed(zones))["claim"].memory_bytes == EACH
    assert (await memory(zones)).free_bytes == TOTAL - EACH - OVERHEAD
    await zones.create_zone("z2", pod_uid="pod-1")
    assert (await listed(zones))["claim"].zone_id == "z2"


async def test_many_at_once_fill_the_host_and_no_more(zones: Zones) -> None:
    """Zones with reservations, zones without, and reservations, all at once."""
    await small(zones)
    await make(zones, "claim-0", "pod-0")
    tries = [
        *(zones.create_zone(f"z{number}", pod_uid=f"pod-{number}",
                            resources=pb.ZoneResources(memory_bytes=EACH)) for number in range(6)),
        *(make(zones, f"claim-{number}") for number in range(10, 16)),
    ]  # fmt: skip
    made = await asyncio.gather(*tries, return_exceptions=True)
    refused = [one for one in made if isinstance(one, grpc.aio.AioRpcError)]
    assert all(one.code() is grpc.StatusCode.RESOURCE_EXHAUSTED for one in refused)
    assert all("it needs 256 MiB, free are 0 MiB of 2048 MiB" in (one.details() or "") for one in refused)
    assert len(made) - len(refused) == 8, "claim-0 is the zone's that has its pod"
    now = await memory(zones)
    assert (now.total_bytes, now.reserved_bytes, now.free_bytes) == (TOTAL, TOTAL, 0)


async def test_memory_taken_by_other_domains_is_seen(zones: Zones) -> None:
    await small(zones)
    watch = zones.clients.reservations.WatchCapacity(rpb.WatchCapacityRequest())
    assert (await next_message(watch)).free_bytes == TOTAL
    faults = zones.protectd.run_dir / "fake/faults.toml"
    faults.write_text(f"foreign_memory = {1900 * MIB}\n")
    told = await next_message(watch)
    assert (told.foreign_bytes, told.free_bytes) == (1900 * MIB, 148 * MIB)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await zones.create_zone(resources=pb.ZoneResources(memory_bytes=EACH))
    assert "free are 148 MiB of 148 MiB" in (raised.value.details() or "")
    assert "other domains 1900 MiB" in (raised.value.details() or "")
    faults.unlink()
    await zones.create_zone(resources=pb.ZoneResources(memory_bytes=EACH))
    watch.cancel()


async def test_a_host_for_reservations_only(zones: Zones) -> None:
    await zones.protectd.daemon.stop()
    zones.protectd.configure(memory={"reservations_only": True})
    await zones.protectd.daemon.start()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await zones.create_zone(pod_uid="pod-1")
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "nothing is reserved for its pod" in (raised.value.details() or "")
    await make(zones, "claim", "pod-1")
    await zones.create_zone(pod_uid="pod-1")


async def test_no_more_zones_than_the_host_has_room_for(zones: Zones) -> None:
    """Independent of free memory: preflight gives the maximum, and the next zone is refused."""
    await zones.protectd.daemon.stop()
    zones.protectd.configure(fake={"memory": "64GiB", "domains_most": 2})
    await zones.protectd.daemon.start()
    info = await zones.clients.host.Info(pb.InfoRequest(), timeout=TIMEOUT)
    assert info.zones_most == 2
    assert "fake.domains_most is 2: 2 zones fit, limits.zones of protectd.toml is 512" in info.notices[-1]
    made = await asyncio.gather(*(zones.create_zone(f"z{n}") for n in range(4)), return_exceptions=True)
    refused = [one for one in made if isinstance(one, grpc.aio.AioRpcError)]
    assert [one.code() for one in refused] == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2
    assert all("as many as the hypervisor has room for" in (one.details() or "") for one in refused)
