"""How zones of a real protectd die, what callers are told, and their consoles."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protectctl.__main__ import main
from tests.support.protect.agent_crash import crash_agent
from tests.support.protect.zones import TIMEOUT, Zones, failing, needs_protectd, serving
from tests.support.waiting import found
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd]


def _directory(zones: Zones, zone: pb.Zone) -> Path:
    domains = (zones.protectd.run_dir / "fake" / "domains").iterdir()
    return next(one for one in domains if (one / "pid").read_text().split()[0] == str(zone.domain_id))


async def _dead(zones: Zones) -> pb.Zone:
    async def look() -> pb.Zone | None:
        zone = await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"), timeout=TIMEOUT)
        return zone if zone.state == pb.ZONE_STATE_DEAD else None

    return await found(look)


async def _console(zones: Zones, *, lines: int = 0, follow: bool = False) -> bytes:
    request = pb.ZoneConsoleRequest(id="z1", lines=lines, follow=follow)
    answer = zones.clients.zones.ZoneConsole(request, timeout=TIMEOUT)
    return b"".join([piece.data async for piece in answer])


@pytest.mark.parametrize(
    ("how", "kind", "cause"),
    [
        ("crash", "AgentCrashed", "its agent ended by signal 11"),
        ("destroy", "Destroyed", "its domain was destroyed, and not by protectd"),
    ],
)
async def test_kind_of_a_zones_death_is_told_to_all_callers(
    zones: Zones, how: str, kind: str, cause: str
) -> None:
    zone = await zones.create_zone()
    await zones.run("/bin/sleep", "100")
    watching = asyncio.create_task(_seen(zones))
    following = asyncio.create_task(_console(zones, follow=True))
    await asyncio.sleep(0.1)
    if how == "crash":
        await asyncio.to_thread(crash_agent, zone.domain_id, _directory(zones, zone))
    else:
        os.kill(zone.domain_id, signal.SIGKILL)
    ended = await zones.wait()
    assert (ended.exit_code, ended.reason) == (137, f"Zone{kind}")
    first, head, *lines = ended.message.splitlines()
    assert (first, head) == (f"the zone ended: {cause}", "its console's last lines:")
    assert any("zone z1 is up" in line for line in lines)
    dead = await _dead(zones)
    assert (dead.death_kind, dead.death_reason) == (kind, f"{kind}: {cause}")
    assert "zone z1 is up" in dead.console
    assert await asyncio.wait_for(watching, TIMEOUT) == (kind, dead.console)
    assert b"zone z1 is up" in await asyncio.wait_for(following, TIMEOUT)
    assert (await _console(zones)).decode() == dead.console + "\n"
    assert (await _console(zones, lines=1)).decode() == dead.console.splitlines()[-1] + "\n"
    await zones.protectd.daemon.crash()
    await zones.protectd.daemon.start()
    assert await _dead(zones) == dead, "told otherwise after a restart"


async def _seen(zones: Zones) -> tuple[str, str]:
    """The zone's death in the event of a watcher."""
    async for event in zones.clients.host.Watch(pb.WatchRequest()):
        if event.zone.state == pb.ZONE_STATE_DEAD:
            return event.zone.death_kind, event.zone.console
    raise AssertionError("nothing was told")


async def test_a_console_is_followed(zones: Zones, capsys: pytest.CaptureFixture[str]) -> None:
    zone = await zones.create_zone()
    request = pb.ZoneConsoleRequest(id="z1", lines=1, follow=True)
    pieces = aiter(zones.clients.zones.ZoneConsole(request, timeout=TIMEOUT))
    assert (await anext(pieces)).data.endswith(b"zone z1 is up\n")
    log = _directory(zones, zone) / "console.log"
    with log.open("ab", buffering=0) as file:
        file.write(b"\x1b[31mred\n")
        assert (await anext(pieces)).data == b"\x1b[31mred\n"
    socket = str(zones.protectd.run_dir / "protect.sock")
    status = await asyncio.to_thread(main, ["zone", "console", "--socket", socket, "--lines", "1", "z"])
    assert status == 0 and capsys.readouterr().out == "\\x1b[31mred\n"
    await zones.destroy_zone()
    assert [piece async for piece in pieces] == []
    async with failing(grpc.StatusCode.NOT_FOUND):
        await _console(zones)


async def test_endless_boot_is_reported(tmp_path: Path, busybox_image: Path) -> None:
    faults = {"toolstack": {"fault": [{"at": "open_channel", "kind": "stall", "times": 0}]}}
    async with serving(tmp_path, busybox_image, faults=faults, timeouts={"boot": "1s"}) as zones:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await zones.create_zone()
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        details = failed.value.details() or ""
        assert "it does not boot: no connection within 1 s" in details
        assert "its console's last lines:\nagent: zone z1 is up" in details
        await zones.nothing_left()


async def test_zone_death_during_the_creation_names_the_death(tmp_path: Path, busybox_image: Path) -> None:
    faults = {"toolstack": {"fault": [{"at": "unpause", "kind": "die"}]}}
    async with serving(tmp_path, busybox_image, faults=faults) as zones:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await zones.create_zone()
        assert "it died: Destroyed: its domain was destroyed" in (failed.value.details() or "")
        await zones.nothing_left()


async def test_zone_with_a_silent_agent_is_ended(tmp_path: Path, busybox_image: Path) -> None:
    """Every connection after the first is silent, as when its ring is lost."""
    async with serving(tmp_path, busybox_image, timeouts={"silence": "1s", "boot": "1s"}) as zones:
        await zones.create_zone()
        await zones.run("/bin/sleep", "100")
        await zones.protectd.daemon.crash()
        plan = {"fault": [{"at": "open_channel", "kind": "stall", "times": 0}]}
        zones.protectd.configure(faults={"toolstack": plan}, timeouts={"silence": "1s", "boot": "1s"})
        await zones.protectd.daemon.start()
        ended = await zones.wait()
        assert ended.reason == "ZoneChannelLost"
        assert "could not be reached for 1 s, although its domain runs" in ended.message
        assert (await _dead(zones)).death_kind == "ChannelLost"
        await zones.delete()
        await zones.destroy_zone()
        await zones.nothing_left()
