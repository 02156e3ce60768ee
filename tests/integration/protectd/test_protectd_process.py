"""protectd as a program: start, stop, command line, unknown domains."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import sys
import time
from pathlib import Path

import grpc
import pytest

from tests.support.protect.daemons import ROOT, DaemonFailed, Protectd
from tests.support.protect.zones import TIMEOUT, Zones, needs_protectd, serving
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd]


async def program(*arguments: str) -> tuple[int, str, str]:
    """A Python module of ours, run to its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_stop_leaves_zones_running_and_waits_for_nobody(zones: Zones) -> None:
    zone = await zones.create_zone()
    await zones.run("/bin/sh", "-c", "while [ ! -e /go ]; do sleep 0.05; done; echo end; exit 4")
    waiting = asyncio.create_task(zones.wait())
    for again in (True, True, False):  # a stall of the machine is forgiven twice
        watch = zones.clients.host.Watch(pb.WatchRequest(), timeout=TIMEOUT, wait_for_ready=True)
        await anext(aiter(watch))
        begin = time.monotonic()
        await zones.protectd.daemon.stop()
        if (took := time.monotonic() - begin) < 4 or not again:
            break
        await zones.protectd.daemon.start()
    assert took < 4, "calls under way have five seconds"
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await waiting
    assert told.value.code() is grpc.StatusCode.UNAVAILABLE
    os.kill(zone.domain_id, 0)
    await zones.protectd.daemon.start()
    await zones.exec("/bin/touch", "/go")
    assert (await zones.wait()).exit_code == 4
    assert zones.lines() == ["stdout F end"]


async def test_unknown_domains_are_reported_and_left_alone(zones: Zones) -> None:
    """The state is lost, and comes back: nothing was done to the domain in between."""
    zone = await zones.create_zone()
    await zones.protectd.daemon.stop()
    state = zones.folder / "state"
    shutil.move(state, zones.folder / "kept")
    await zones.protectd.daemon.start()
    info = await zones.clients.host.Info(pb.InfoRequest(), timeout=TIMEOUT)
    assert len(info.unknown_domains) == 1 and str(zone.domain_id) in info.unknown_domains[0]
    answer = await zones.clients.zones.ListZones(pb.ListZonesRequest(), timeout=TIMEOUT)
    assert not answer.zones
    os.kill(zone.domain_id, 0)
    await zones.protectd.daemon.stop()
    shutil.rmtree(state)
    shutil.move(zones.folder / "kept", state)
    await zones.protectd.daemon.start()
    facts = await zones.clients.zones.ZoneFacts(pb.ZoneFactsRequest(id="z1"), timeout=TIMEOUT)
    assert facts.pid1 == "init"


async def test_zones_keep_their_mode_when_the_default_becomes_another(zones: Zones) -> None:
    """As after an upgrade, or on a host with a changed firmware setting."""
    assert (await zones.create_zone()).mode == pb.ZONE_MODE_PV
    await zones.protectd.daemon.stop()
    zones.protectd.configure(fake={"hvm": True, "hap": True})
    await zones.protectd.daemon.start()
    kept = await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"), timeout=TIMEOUT)
    assert (kept.mode, kept.state) == (pb.ZONE_MODE_PV, pb.ZONE_STATE_RUNNING)
    assert (await zones.create_zone("z2")).mode == pb.ZONE_MODE_PVH
    facts = await zones.clients.zones.ZoneFacts(pb.ZoneFactsRequest(id="z1"), timeout=TIMEOUT)
    assert facts.pid1 == "init"


async def test_second_protectd_on_a_state_directory_is_refused(zones: Zones) -> None:
    second = Protectd(zones.folder / "second", settings={"state_dir": str(zones.folder / "state")})
    with pytest.raises(DaemonFailed, match="another protectd runs on it"):
        await second.daemon.start()
    assert await second.daemon.ended() == 1


async def test_socket_and_run_directory_are_open_to_their_owner_alone(zones: Zones) -> None:
    socket = zones.protectd.daemon.socket
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(zones.protectd.run_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("toolstack = 'qemu'", "not one of 'fake', 'libxl'"),
        ("toolstak = 'fake'", "unknown key 'toolstak'"),
        ("run_dir = 'run'", "key 'run_dir': 'run' is not an absolute path"),
        ("[faults]\nkill_at = 'nowhere'", "key 'faults.kill_at': arm checkpoint nowhere: no such step"),
        ("[profiles.x]\nmemory = '1KiB'", "memory_min"),
        ("log_level = 'loud'", "key 'log_level': 'loud' is not one of debug"),
        ("limits.workloads_per_zone = 65", "key 'limits.workloads_per_zone': 65 is more than 64"),
        ("toolstack =", "not TOML"),
    ],
)
async def test_wrong_configuration_is_refused_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "protectd.toml"
    config.write_text(text)
    status, _, error = await program("protect", "--config", str(config))
    assert status == 2 and said in error and str(config) in error


async def test_reserve_of_all_memory_is_refused(tmp_path: Path) -> None:
    protectd = Protectd(tmp_path, settings={"memory": {"reserve": "64GiB"}})
    with pytest.raises(DaemonFailed) as failed:
        await protectd.daemon.start()
    assert await protectd.daemon.ended() == 1
    assert f"{protectd.daemon.config}: key 'memory.reserve': " in str(failed.value)


async def test_missing_configuration_ends_the_start(tmp_path: Path) -> None:
    status, _, error = await program("protect", "--config", str(tmp_path / "none.toml"))
    assert status == 2 and "no such file" in error


async def test_the_list_of_steps() -> None:
    status, out, _ = await program("protect", "--list-checkpoints")
    assert status == 0
    assert {"zone-create.recorded", "workload-delete.forgotten", "zone-connect.spliced"} <= set(out.split())


async def test_protectctl_shows_and_destroys_a_zone(zones: Zones) -> None:
    await zones.create_zone(hostname="alpha")
    await zones.run("/bin/sleep", "100")
    socket = ("--socket", str(zones.protectd.daemon.socket))
    status, out, _ = await program("protectctl", "zone", "inspect", "z1", *socket)
    assert status == 0 and "alpha" in out and "init" in out
    status, out, _ = await program("protectctl", "workload", "list", *socket, "--output", "json")
    assert json.loads(out)["workloads"][0]["state"] == "WORKLOAD_STATE_RUNNING"
    status, out, _ = await program("protectctl", "host", *socket)
    assert status == 0 and "NO SECURITY BOUNDARY" in out
    status, _, error = await program("protectctl", "zone", "inspect", "nobody", *socket)
    assert status == 1 and "NOT_FOUND" in error
    status, _, _ = await program("protectctl", "zone", "destroy", "z1", *socket)
    assert status == 0
    await zones.nothing_left()


def _fill(path: Path) -> None:
    """Fill the disk with a file."""
    with path.open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))


async def test_a_full_state_directory(tmp_path: Path, busybox_image: Path) -> None:
    """No room for anything: a clear answer, and all goes on once there is room again."""
    small = tmp_path / "small"
    small.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(small))
    mount = await asyncio.create_subprocess_exec(*command)
    assert await mount.wait() == 0
    try:
        async with serving(tmp_path / "p", busybox_image, state_dir=str(small / "state")) as zones:
            await zones.create_zone()
            _fill(small / "filler")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                for number in range(500):
                    await zones.create_zone(f"n{number}")
                    await zones.destroy_zone(f"n{number}")
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "free space in state_dir" in (refused.value.details() or "")
            (small / "filler").unlink()
            await zones.run("/bin/true")
            assert (await zones.wait()).exit_code == 0
    finally:
        umount = await asyncio.create_subprocess_exec("umount", str(small))
        assert await umount.wait() == 0
