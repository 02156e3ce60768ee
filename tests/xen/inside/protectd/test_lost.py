"""Losses that zones survive on libxl: a lost database, a restarted xenconsoled, a restarted xenstored.

The tests run in the order of the file, and the last test leaves an unusable dom0.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from tests.support.images import busybox
from tests.support.protect.zones import Zones
from tests.support.waiting import until
from tests.xen import machine
from tests.xen.inside.protectd.xen_zones import (
    MEMORY,
    PATIENCE,
    create,
    destroy,
    domains,
    listed,
    nothing_left,
    on_xen,
    refused,
    run,
    settled,
)
from xenbind.context import Context
from xenbind.errors import StoreError
from xenbind.xenstore import Xenstore
from xenpod_proto.protect.v1 import protect_pb2 as pb


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    (folder / "scratch").mkdir()
    return busybox.build(folder / "image.squashfs", folder / "scratch")


@pytest.fixture
async def zones(tmp_path: Path, image: Path) -> AsyncIterator[Zones]:
    async with on_xen(tmp_path, image) as zones:
        yield zones


async def strangers(zones: Zones) -> list[pb.Stranger]:
    answer = await zones.clients.zones.ListStrangers(pb.ListStrangersRequest(), timeout=PATIENCE)
    return list(answer.strangers)


async def says(zones: Zones, word: str) -> None:
    """Wait for a notice of the host."""

    async def noticed() -> bool:
        return word in await _notices(zones)

    await until(noticed, PATIENCE)


async def _notices(zones: Zones) -> str:
    """The host's notices, or the error: without xenstored some questions have no answer."""
    try:
        answer = await zones.clients.host.Info(pb.InfoRequest(), timeout=PATIENCE, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        return error.details() or ""
    return "\n".join(answer.notices)


def _pid(name: str) -> int:
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if comm.read_text().strip() == name:
                return int(comm.parent.name)
    raise AssertionError(f"{name} does not run")


def _program(name: str) -> str:
    return str(max(Path("/usr/lib").glob(f"xen-*/bin/{name}")))


async def _ended(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not os.path.exists(f"/proc/{pid}"), PATIENCE)


async def test_lost_records_are_adopted_by_marks(zones: Zones) -> None:
    """Marks distinguish domains of zones from other virtual machines; the domains are adopted and removed."""
    for zone_id in ("adopted", "removed"):
        await create(zones, zone_id, interfaces=1)
    await zones.protectd.daemon.crash()
    for file in (zones.folder / "state").glob("protect.db*"):
        file.unlink()
    await zones.protectd.daemon.start()
    assert await listed(zones) == {}
    found = {one.zone_id: one for one in await strangers(zones)}
    assert found.keys() == {"adopted", "removed"} and found["adopted"].zone_name == "web"
    adopt = pb.AdoptZoneRequest(uuid=found["adopted"].uuid)
    assert (await zones.clients.zones.AdoptZone(adopt, timeout=PATIENCE)).resources.memory_bytes == MEMORY
    await settled(zones, "adopted")
    facts = await zones.clients.zones.ZoneFacts(pb.ZoneFactsRequest(id="adopted"), timeout=PATIENCE)
    assert facts.pid1 == "init"
    remove = pb.RemoveStrangerRequest(uuid=found["removed"].uuid)
    await zones.clients.zones.RemoveStranger(remove, timeout=PATIENCE)
    assert await strangers(zones) == []
    await destroy(zones, "adopted")
    await nothing_left(zones)


async def test_xenconsoled_is_restarted(zones: Zones) -> None:
    """The console has a zone's output from before and after the restart."""
    zone = await create(zones, "z1")
    log = next(Path("/var/log/xen/console").glob("guest-web.*.log"))
    before = log.read_bytes()
    assert before
    await _ended(_pid("xenconsoled"))
    run(_program("xenconsoled"), "--log=guest", "--log-dir=/var/log/xen/console")
    run("xl", "sysrq", str(zone.domain_id), "h")
    await until(lambda: b"sysrq" in log.read_bytes()[len(before) :].lower(), PATIENCE)
    assert log.read_bytes().startswith(before)
    await create(zones, "z2")
    for zone_id in ("z1", "z2"):
        await destroy(zones, zone_id)
    await nothing_left(zones)


async def test_zones_end_in_order_with_their_host(zones: Zones) -> None:
    """A workload with a requested end keeps its exit code; no domain is left, and records stay."""
    await create(zones, "z1")
    await zones.run("/bin/sh", "-c", "trap 'exit 3' TERM; echo up; while :; do sleep 0.2; done")
    await until(lambda: zones.log().exists() and zones.lines() == ["stdout F up"], PATIENCE)
    request = pb.ShutdownZonesRequest(deadline_ns=240 * 10**9)
    answer = await zones.clients.zones.ShutdownZones(request, timeout=PATIENCE)
    assert list(answer.left) == []
    zone = (await listed(zones))["z1"]
    assert (zone.state, zone.death_reason) == (
        pb.ZONE_STATE_DEAD,
        "HostShutDown: the host was shut down",
    )
    assert (await zones.get()).exit_code == 3
    assert domains() == {}
    await destroy(zones, "z1")
    await nothing_left(zones)


async def test_xenstored_is_restarted(zones: Zones) -> None:
    """No zone ends: zones are reached by their channels, and destroyed on request."""
    for zone_id in ("z1", "z2"):
        await create(zones, zone_id)
    await zones.run("/bin/sleep", "100000")
    numbers = {zone.id: zone.domain_id for zone in (await listed(zones)).values()}
    store = (machine.SHARE / "store").read_text()
    await _ended(_pid(store))
    with pytest.raises(StoreError):  # and not a wait for ever
        Context()
    await says(zones, "xenstored does not answer")
    assert (await zones.exec("/bin/echo", "here"))[0] == b"here\n"
    assert "xenstored" in await refused(
        zones.clients.zones.CreateZone(pb.CreateZoneRequest(id="z3"), timeout=PATIENCE)  # type: ignore[arg-type]
    )
    run(_program(store))
    run(_program("xen-init-dom0"))
    await says(zones, "xenstored was restarted")
    await settled(zones, "z1", "z2")
    assert (await zones.exec("/bin/echo", "still here"))[0] == b"still here\n"
    await _marked(numbers["z1"])
    # No watcher learns of this end: the new xenstored does not know the domain.
    run("xl", "destroy", str(numbers["z2"]))

    async def dead() -> bool:
        return (await listed(zones))["z2"].state == pb.ZONE_STATE_DEAD

    await until(dead, PATIENCE)
    # A restarted protectd finds its domain without any node, and does not take the loss for an end.
    await zones.protectd.daemon.stop()
    with Xenstore() as xenstore:
        xenstore.remove(f"/local/domain/{numbers['z1']}")
    await zones.protectd.daemon.start()
    assert (await listed(zones))["z1"].state == pb.ZONE_STATE_RUNNING
    await _marked(numbers["z1"])
    assert await strangers(zones) == []
    await destroy(zones, "z1")
    assert domains().get(numbers["z1"], True), "it runs on, and nobody knows it"
    assert set(await listed(zones)) == {"z2"}


async def _marked(domid: int) -> None:
    """Wait until the patrol has repeated the domain's mark."""

    def marked() -> bool:
        with Xenstore() as store:
            return b"z1" in (store.read(f"/local/domain/{domid}/xenpod") or b"")

    await until(marked, PATIENCE)
    with Xenstore() as store:
        assert (store.read(f"/local/domain/{domid}/name") or b"").startswith(b"web.")
