"""SIGKILL of protectd at each recorded step: afterwards an operation is complete, or undone."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest

import protect.__main__  # noqa: F401 - imports every step
from protect.host.disk_rates.throttle import can_throttle
from tests.support.protect import leftovers
from tests.support.protect.crashes import armed, connected, killed, once_undone, steps, workloads
from tests.support.protect.disk_counts import limits
from tests.support.protect.zones import TIMEOUT, Zones, needs_protectd, stack
from tests.support.session.checkpoints import killed_at
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, pytest.mark.slow, needs_protectd]


@pytest.fixture
def netns() -> Iterator[str]:
    """A namespace with what CNI would have made: an interface with an address."""
    name = f"xpt-{secrets.token_hex(4)}"
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", "far0")
        _ip("-n", name, "addr", "add", "10.9.8.7/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "far0", "up")
        yield f"/run/netns/{name}"
    finally:
        _ip("netns", "del", name)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


async def zone_ids(zones: Zones) -> list[str]:
    await connected(zones)
    answer = await zones.clients.zones.ListZones(pb.ListZonesRequest(), timeout=TIMEOUT)
    return [zone.id for zone in answer.zones]


async def witness(zones: Zones) -> None:
    """Another zone's workload, that counts for as long as the test goes on."""
    await zones.create_zone("other")
    script = (
        "i=0; while [ ! -e /stop ]; do i=$((i+1)); echo $i; [ $((i%50)) = 0 ] && sleep 0.02; done; exit 42"
    )
    await zones.run("/bin/sh", "-c", script, workload_id="counter", zone_id="other")


async def still_counts(zones: Zones) -> None:
    """Check that the workload went on: the exit code is there, and each line once."""
    await zones.exec("/bin/sh", "-c", "echo > /stop", workload_id="counter")
    ended = await zones.wait("counter")
    assert (ended.exit_code, ended.reason) == (42, "Error")
    lines = zones.lines("counter")
    assert len(lines) > 100
    assert lines == [f"stdout F {number}" for number in range(1, len(lines) + 1)]


@killed_at(steps("zone-create", "fake-create"))
async def test_killed_zone_create_is_complete_or_undone(zones: Zones, step: str) -> None:
    await witness(zones)
    await armed(zones, step)
    await killed(zones, zones.create_zone(scratch_bytes=1 << 26))
    if "z1" in await zone_ids(zones):
        assert step == "zone-create.running"
        await zones.run("/bin/true")
        assert (await zones.wait()).exit_code == 0
    else:
        await _only_the_witness(zones)
        await zones.create_zone()
    await still_counts(zones)


async def _only_the_witness(zones: Zones) -> None:
    """One domain, one disk, and nothing of any other domain."""
    run_dir, folder = zones.protectd.run_dir, zones.folder

    def seen() -> tuple[int, int, list[str], int, int]:
        return (
            len({Path(group).name for group in leftovers.cgroups(run_dir)}),
            len(list((run_dir / "fake/domains").iterdir())),
            [path.name for path in (run_dir / "zones").iterdir()],
            len(leftovers.loops(folder)),
            len([one for one in leftovers.processes(run_dir) if one.endswith(" init")]),
        )

    await until(lambda: seen() == (1, 1, ["other"], 1, 1), what=seen)


@killed_at(steps("zone-connect"))
async def test_killed_network_connect_is_finished_by_the_next_start(
    zones: Zones, step: str, netns: str
) -> None:
    await witness(zones)
    await zones.create_zone(interfaces=1)
    await armed(zones, step)
    request = pb.ConnectNetworkRequest(zone_id="z1", netns_path=netns, interface="eth0")
    await killed(zones, zones.clients.zones.ConnectNetwork(request, timeout=TIMEOUT))
    await connected(zones)
    # Finished by the start; and the caller, who knows nothing of that, may ask again.
    await zones.clients.zones.ConnectNetwork(request, timeout=TIMEOUT)
    await zones.run("/bin/ip", "-4", "addr", "show", "dev", "eth0")
    await zones.wait()
    assert any("10.9.8.7/24" in line for line in zones.lines())
    await still_counts(zones)


@killed_at(steps("workload-create"))
async def test_killed_workload_create_is_complete_or_undone(zones: Zones, step: str) -> None:
    await witness(zones)
    await zones.create_zone()
    await armed(zones, step)
    await killed(zones, zones.create(["/bin/echo", "hello"]))
    await connected(zones)
    if "w1" in await workloads(zones):
        assert step == "workload-create.created"
    else:
        await _nothing_of_w1(zones)
        await once_undone(lambda: zones.create(["/bin/echo", "hello"]))
    await zones.start()
    assert (await zones.wait()).exit_code == 0
    assert zones.lines() == ["stdout F hello"]
    await still_counts(zones)


async def _nothing_of_w1(zones: Zones) -> None:
    journals = zones.protectd.run_dir / "zones/z1"
    await until(lambda: len(leftovers.loops(zones.folder)) == 1 and not list(journals.glob("*")))


@killed_at(steps("workload-start"))
async def test_workload_runs_once_after_a_killed_start(zones: Zones, step: str) -> None:
    await witness(zones)
    await zones.create_zone()
    await zones.create(["/bin/sh", "-c", "echo hello; sleep 0.5; echo bye; exit 5"])
    await armed(zones, step)
    await killed(zones, zones.start())
    await connected(zones)
    # Otherwise the workload has been started, and runs once its zone has reported.
    if step == "workload-start.begun":
        assert (await zones.get()).state == pb.WORKLOAD_STATE_CREATED
        await zones.start()
    ended = await zones.wait()
    assert (ended.exit_code, ended.reason) == (5, "Error")
    assert ended.started_at_ns
    assert zones.lines() == ["stdout F hello", "stdout F bye"]
    await still_counts(zones)


@killed_at(steps("workload-exit"))
async def test_exit_code_and_log_survive_a_kill(zones: Zones, step: str) -> None:
    await zones.create_zone()
    await armed(zones, step)
    await zones.create(["/bin/sh", "-c", "echo hello; exit 6"])
    await killed(zones, zones.start())
    ended = await zones.wait()
    assert (ended.exit_code, ended.reason) == (6, "Error")
    assert zones.lines() == ["stdout F hello"]


@killed_at(steps("workload-delete"))
@pytest.mark.parametrize("runs", [True, False])
async def test_killed_workload_delete_leaves_nothing_but_the_log(zones: Zones, step: str, runs: bool) -> None:
    await witness(zones)
    await zones.create_zone()
    await zones.run("/bin/sh", "-c", "echo hello; sleep 100" if runs else "echo hello")
    if not runs:
        await zones.wait()
    await armed(zones, step)
    await killed(zones, zones.delete())
    await connected(zones)
    await zones.delete()
    assert "w1" not in await workloads(zones)
    await _nothing_of_w1(zones)
    assert zones.lines() == ["stdout F hello"]
    await zones.run("/bin/echo", "again")
    await zones.wait()
    await still_counts(zones)


@killed_at(steps("zone-destroy", "fake-destroy"))
async def test_killed_zone_destroy_is_completed_after_the_restart(zones: Zones, step: str) -> None:
    await witness(zones)
    await zones.create_zone()
    await zones.run("/bin/sleep", "100")
    await armed(zones, step)
    await killed(zones, zones.destroy_zone())
    await until_ids(zones, ["other"])
    await _only_the_witness(zones)
    await zones.create_zone()
    await still_counts(zones)


async def until_ids(zones: Zones, ids: list[str]) -> None:
    async def listed() -> bool:
        return await zone_ids(zones) == ids

    await until(listed)


@killed_at(["reconcile.loaded", "reconcile.shared", "reconcile.adopted"])
async def test_disk_rates_hold_through_kills_and_for_new_disks(zones: Zones, step: str) -> None:
    """Held during the outage, and afterwards for the zone's new disks."""
    rates = pb.DiskRates(read_bytes=123 << 20)
    await zones.create_zone(disk_rates=rates)
    await zones.run("/bin/sleep", "1000")
    assert _rates(zones) == {rates.read_bytes: 1}
    await zones.protectd.daemon.crash()
    assert _rates(zones) == {rates.read_bytes: 1}
    zones.protectd.configure(faults={"kill_at": step})
    with suppress(AssertionError):
        await zones.protectd.daemon.start()
    assert await zones.protectd.daemon.ended() == -9
    zones.protectd.configure(faults={})
    await zones.protectd.daemon.start()
    await connected(zones)
    other = zones.folder / "other.squashfs"
    shutil.copy(zones.image, other)
    await zones.run("/bin/true", workload_id="w2", filesystems=stack(other))
    assert _rates(zones) == {rates.read_bytes: 2}
    shown = await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"), timeout=TIMEOUT)
    assert shown.disk_rates == rates


@killed_at(steps("zone-rates"))
async def test_change_rates_of_disks(zones: Zones, step: str) -> None:
    """The record equals the host's state, on either side of the step."""
    await zones.create_zone(disk_rates=pb.DiskRates(read_bytes=123 << 20))
    await zones.run("/bin/sleep", "1000")
    await armed(zones, step)
    asks = pb.ResizeZoneRequest(id="z1", disk_rates=pb.DiskRates(read_bytes=99 << 20))
    await killed(zones, zones.clients.zones.ResizeZone(asks, timeout=TIMEOUT))
    await connected(zones)
    assert _rates(zones) == {99 << 20: 1}
    await armed(zones, step)
    asks = pb.ResizeZoneRequest(id="z1", disk_rates=pb.DiskRates())
    await killed(zones, zones.clients.zones.ResizeZone(asks, timeout=TIMEOUT))
    await connected(zones)
    assert _rates(zones) == {}


def _rates(zones: Zones) -> dict[int, int]:
    """How many disks have which rate for reading, by the groups of the only zone."""
    groups = map(Path, leftovers.cgroups(zones.protectd.run_dir))
    (group,) = (group for group in groups if can_throttle(group))
    return dict(Counter(limits(group, "read")))


@killed_at(["reconcile.loaded", "reconcile.shared", "resync.listed", "resync.joined", "reconcile.adopted"])
async def test_workloads_survive_kills_during_adoption(zones: Zones, step: str) -> None:
    """Killed during the adoption, and again; running workloads do not notice."""
    await witness(zones)
    await zones.protectd.daemon.crash()
    zones.protectd.configure(faults={"kill_at": step})
    for _ in range(2):
        with suppress(AssertionError):
            await zones.protectd.daemon.start()
        assert await zones.protectd.daemon.ended() == -9
    zones.protectd.configure(faults={})
    await zones.protectd.daemon.start()
    await connected(zones)
    await still_counts(zones)


@killed_at(["reconcile.undone", "zone-destroy.recorded", "zone-destroy.domain-destroyed"])
async def test_undo_is_completed_after_another_kill(zones: Zones, step: str) -> None:
    await witness(zones)
    await armed(zones, "zone-create.connected")
    with suppress(grpc.aio.AioRpcError):
        await zones.create_zone()
    assert await zones.protectd.daemon.ended() == -9
    zones.protectd.configure(faults={"kill_at": step})
    with suppress(AssertionError):
        await zones.protectd.daemon.start()
    assert await zones.protectd.daemon.ended() == -9
    zones.protectd.configure(faults={})
    await zones.protectd.daemon.start()
    await until_ids(zones, ["other"])
    await _only_the_witness(zones)
    await still_counts(zones)


async def test_workload_of_a_vanished_zone_ends_as_zone_destroyed(zones: Zones) -> None:
    """The zone is gone, as after a boot of the host."""
    zone = await zones.create_zone()
    await zones.run("/bin/sleep", "100")
    await zones.protectd.daemon.crash()
    os.kill(zone.domain_id, 9)
    await until(lambda: not leftovers.processes(zones.protectd.run_dir))
    zones.protectd.configure(faults={"kill_at": "workload-exit.heard"})
    await zones.protectd.daemon.start()
    ended = await zones.wait()
    assert (ended.exit_code, ended.reason) == (137, "ZoneDestroyed")
    assert (await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"))).state == pb.ZONE_STATE_DEAD


async def test_killed_again_and_again(zones: Zones) -> None:
    """At moments nobody chose; the counter's log has no gap and no repetition."""
    await witness(zones)
    for pause in itertools.islice(itertools.cycle((0.0, 0.05, 0.2)), 9):
        await asyncio.sleep(pause)
        await zones.protectd.daemon.crash()
        await zones.protectd.daemon.start()
    await connected(zones)
    await still_counts(zones)


async def test_ended_while_nobody_looked(zones: Zones) -> None:
    """Exit codes and output of the time between two daemons are all there."""
    await zones.create_zone()
    names = [f"w{number}" for number in range(5)]
    for number, name in enumerate(names):
        script = f"sleep 0.3; seq {1000 * (number + 1)}; exit {number}"
        await zones.run("/bin/sh", "-c", script, workload_id=name)
    await zones.protectd.daemon.crash()
    await asyncio.sleep(1.0)
    await zones.protectd.daemon.start()
    for number, name in enumerate(names):
        assert (await zones.wait(name)).exit_code == number
        assert zones.lines(name) == [f"stdout F {one}" for one in range(1, 1000 * (number + 1) + 1)]
