"""Zones with lost records, and a host's shutdown, on the real daemon; also with kills of the daemon."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc.aio
import pytest

from tests.support.protect import leftovers
from tests.support.protect.crashes import armed, connected, killed, steps
from tests.support.protect.daemons import ROOT
from tests.support.protect.zones import TIMEOUT, Zones, failing, needs_protectd
from tests.support.session.checkpoints import killed_at
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd]

SHUTDOWN = pb.ShutdownZonesRequest(deadline_ns=30 * 10**9)
TRAPS = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"
DEAF = "trap '' TERM; echo up; while :; do sleep 0.05; done"


async def command(zones: Zones, *words: str) -> str:
    """Output of ``protect``."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "protectctl", *words, "--socket", str(zones.protectd.daemon.socket)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def lose_records(zones: Zones, **faults: object) -> None:
    await zones.protectd.daemon.crash()
    for file in (zones.folder / "state").glob("protect.db*"):
        file.unlink()
    zones.protectd.configure(faults=faults)
    await zones.protectd.daemon.start()


async def stranger(zones: Zones) -> pb.Stranger:
    """The only zone."""
    answer = await zones.clients.zones.ListStrangers(
        pb.ListStrangersRequest(), timeout=TIMEOUT, wait_for_ready=True
    )
    (one,) = answer.strangers
    return one


async def states(zones: Zones) -> dict[str, pb.ZoneState.ValueType]:
    answer = await zones.clients.zones.ListZones(pb.ListZonesRequest(), timeout=TIMEOUT, wait_for_ready=True)
    return {zone.id: zone.state for zone in answer.zones}


async def test_a_lost_zone_is_adopted(zones: Zones) -> None:
    """The zone's workloads, unknown now, end: their owner makes them again."""
    await zones.create_zone(hostname="kept")
    await zones.run("/bin/sleep", "1000")
    await lose_records(zones)
    assert await states(zones) == {}
    listed = json.loads(await command(zones, "zone", "list", "--strangers", "--output", "json"))
    (found,) = listed["strangers"]
    assert (found["zone_id"], found["zone_name"], found["ended"]) == ("z1", "web", False)
    assert found["uuid"] in await command(zones, "zone", "list", "--strangers")
    await command(zones, "zone", "adopt", found["uuid"][:8])
    await connected(zones)
    facts = await zones.clients.zones.ZoneFacts(pb.ZoneFactsRequest(id="z1"), timeout=TIMEOUT)
    assert facts.hostname == "kept"
    async with failing(grpc.StatusCode.FAILED_PRECONDITION):
        await zones.clients.zones.AdoptZone(pb.AdoptZoneRequest(uuid=found["uuid"]), timeout=TIMEOUT)
    await until(lambda: not leftovers.loops(zones.folder))
    for number in range(2):
        await zones.run("/bin/true", workload_id=f"new{number}")
        assert (await zones.wait(f"new{number}")).exit_code == 0
    await zones.destroy_zone()
    await zones.nothing_left()


async def test_a_lost_zone_is_removed(zones: Zones) -> None:
    await zones.create_zone()
    await zones.run("/bin/sleep", "1000")
    await lose_records(zones)
    await command(zones, "zone", "remove", (await stranger(zones)).uuid)
    await zones.nothing_left()
    assert "z1" not in await command(zones, "zone", "list", "--strangers")


@pytest.mark.slow
@killed_at(steps("zone-adopt"))
async def test_kill_during_an_adoption(zones: Zones, step: str) -> None:
    await zones.create_zone()
    await zones.run("/bin/sleep", "1000")
    await lose_records(zones, kill_at=step)
    adopt = pb.AdoptZoneRequest(uuid=(await stranger(zones)).uuid)

    async def work() -> None:
        await zones.clients.zones.AdoptZone(adopt, timeout=TIMEOUT)
        await zones.protectd.daemon.ended()

    await killed(zones, work())
    await connected(zones)
    assert await states(zones) == {"z1": pb.ZONE_STATE_RUNNING}
    await until(lambda: not leftovers.loops(zones.folder))
    await zones.run("/bin/true")


@pytest.mark.slow
@killed_at(steps("orphan-remove"))
async def test_kill_during_a_removal(zones: Zones, step: str) -> None:
    await zones.create_zone()
    await lose_records(zones, kill_at=step)
    remove = pb.RemoveStrangerRequest(uuid=(await stranger(zones)).uuid)
    await killed(zones, zones.clients.zones.RemoveStranger(remove, timeout=TIMEOUT))
    assert await states(zones) == {}
    await zones.nothing_left()


async def test_the_host_shuts_down(zones: Zones) -> None:
    """Who ends when asked to keeps the exit code; who does not is killed; then nothing of any zone runs."""
    for zone_id, script in (("ends", TRAPS), ("deaf", DEAF)):
        await zones.create_zone(zone_id)
        await zones.run("/bin/sh", "-c", script, workload_id=zone_id, zone_id=zone_id)
        await until(lambda name=zone_id: zones.lines(name) == ["stdout F up"])
    await command(zones, "zone", "shutdown", "--deadline", "9")
    assert await states(zones) == {"ends": pb.ZONE_STATE_DEAD, "deaf": pb.ZONE_STATE_DEAD}
    ended, deaf = await zones.get("ends"), await zones.get("deaf")
    assert (ended.exit_code, zones.lines("ends")) == (3, ["stdout F up", "stdout F bye"])
    assert deaf.exit_code == 137
    zone = await zones.clients.zones.GetZone(pb.GetZoneRequest(id="deaf"), timeout=TIMEOUT)
    assert zone.death_reason == "HostShutDown: the host was shut down"
    assert not [one for one in leftovers.processes(zones.protectd.run_dir) if one.endswith(" init")]
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        await zones.create_zone("new")
    assert "shutting down" in said[0]
    # As after the boot: ends are known, and zones can be made again.
    await zones.protectd.daemon.stop()
    await zones.protectd.daemon.start()
    assert (await zones.get("ends")).exit_code == 3
    await zones.create_zone("new")


async def test_a_restart_of_the_daemon_ends_no_zone(zones: Zones) -> None:
    await zones.create_zone()
    await zones.run("/bin/sh", "-c", TRAPS)
    await zones.protectd.daemon.stop()
    await zones.protectd.daemon.start()
    await connected(zones)
    assert (await zones.get()).state == pb.WORKLOAD_STATE_RUNNING


@pytest.mark.slow
@killed_at(steps("zone-shutdown"))
async def test_killed_while_the_host_shuts_down(zones: Zones, step: str) -> None:
    await zones.create_zone()
    await zones.run("/bin/sh", "-c", TRAPS)
    await armed(zones, step)
    await killed(zones, zones.clients.zones.ShutdownZones(SHUTDOWN, timeout=TIMEOUT))
    await zones.clients.zones.ShutdownZones(SHUTDOWN, timeout=TIMEOUT, wait_for_ready=True)
    assert await states(zones) == {"z1": pb.ZONE_STATE_DEAD}
    assert (await zones.get()).state == pb.WORKLOAD_STATE_EXITED
    await until(lambda: not leftovers.cgroups(zones.protectd.run_dir))


async def _noticed(zones: Zones, true: Callable[[], Awaitable[bool]]) -> None:
    await until(lambda: true(), TIMEOUT)


async def test_a_reboot_is_told_from_a_restart(zones: Zones) -> None:
    """By the boot in the zone's record; here another boot than the host's."""
    zone = await zones.create_zone()
    await zones.protectd.daemon.crash()
    with suppress(ProcessLookupError):
        os.kill(zone.domain_id, 9)
    await until(lambda: not leftovers.processes(zones.protectd.run_dir))
    subprocess.run(["rm", "-r", str(zones.protectd.run_dir / "fake/domains")], check=True)
    change_boot(zones)
    await zones.protectd.daemon.start()

    async def dead() -> bool:
        return await states(zones) == {"z1": pb.ZONE_STATE_DEAD}

    await _noticed(zones, dead)
    zone = await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"), timeout=TIMEOUT)
    assert zone.death_reason == "Vanished: the host was rebooted"


def change_boot(zones: Zones) -> None:
    with sqlite3.connect(zones.folder / "state/protect.db") as db:
        ((body,),) = db.execute("SELECT body FROM zones").fetchall()
        changed = json.dumps(json.loads(body) | {"host_boot": "another"})
        db.execute("UPDATE zones SET body = ?", (changed,))
    db.close()
