"""protectd as a process on the fake toolstack: zones and workloads that really run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.support.images import busybox
from tests.support.protect import leftovers
from tests.support.protect.zones import TIMEOUT, Zones, collected, failing, needs_protectd, serving, stack
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd, pytest.mark.asyncio(loop_scope="module")]
MIB = 1 << 20


@pytest.fixture
def zones(shared_zones: Zones) -> Zones:
    return shared_zones


async def test_the_life_of_a_zone(zones: Zones) -> None:
    zone = await zones.create_zone(hostname="alpha")
    assert zone.state == pb.ZONE_STATE_RUNNING and zone.channel_connected and zone.toolstack == "fake"
    facts = await zones.clients.zones.ZoneFacts(pb.ZoneFactsRequest(id="z1"), timeout=TIMEOUT)
    assert (facts.pid1, facts.hostname) == ("init", "alpha")
    await zones.create(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"])
    assert len(leftovers.loops(zones.folder)) == 1
    await zones.start()
    ended = await zones.wait()
    assert (ended.exit_code, ended.reason) == (3, "Error")
    assert sorted(zones.lines()) == ["stderr F err", "stdout F out"]
    assert ended.created_at_ns <= ended.started_at_ns <= ended.finished_at_ns <= time.time_ns()
    await zones.delete()
    assert leftovers.loops(zones.folder) == []
    await zones.destroy_zone()
    await zones.nothing_left()
    async with failing(grpc.StatusCode.NOT_FOUND):
        await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"))


async def test_many_zones_at_once(zones: Zones) -> None:
    names = [f"z{number}" for number in range(10)]
    await asyncio.gather(*(zones.create_zone(name) for name in names))
    await asyncio.gather(
        *(zones.run("/bin/echo", name, workload_id=f"w-{name}", zone_id=name) for name in names)
    )
    ends = await asyncio.gather(*(zones.wait(f"w-{name}") for name in names))
    assert [end.exit_code for end in ends] == [0] * len(names)
    assert [zones.lines(f"w-{name}") for name in names] == [[f"stdout F {name}"] for name in names]
    await asyncio.gather(*(zones.destroy_zone(name) for name in names))
    await zones.nothing_left()


async def test_workloads_share_a_zone_and_not_their_files(zones: Zones) -> None:
    await zones.create_zone()
    await zones.run("/bin/sh", "-c", "echo mine > /tmp/f; sleep 100", workload_id="w1")
    await zones.run("/bin/sh", "-c", "sleep 100", workload_id="w2")
    async with asyncio.timeout(TIMEOUT):
        while (await zones.exec("/bin/cat", "/tmp/f"))[0] != b"mine\n":
            pass
        while (await zones.exec("/bin/cat", "/proc/1/comm", workload_id="w2"))[0] != b"sleep\n":
            pass
    assert (await zones.exec("/bin/cat", "/tmp/f", workload_id="w2"))[2] != 0


async def test_signals_and_exit_codes(zones: Zones) -> None:
    await zones.create_zone()
    await zones.run("/bin/sleep", "100")
    await zones.signal(9)
    ended = await zones.wait()
    assert (ended.exit_code, ended.reason) == (137, "Error")
    async with failing(grpc.StatusCode.FAILED_PRECONDITION):
        await zones.signal(15)


async def test_out_of_memory_is_told_apart(zones: Zones) -> None:
    await zones.create_zone()
    eater = ["/bin/sh", "-c", "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done"]
    await zones.create(eater, oci_config=busybox.config("w1", eater, memory=16 * MIB))
    await zones.start()
    ended = await zones.wait()
    assert (ended.exit_code, ended.reason) == (137, "OOMKilled")


async def test_missing_command_fails_and_its_workload_can_be_deleted(zones: Zones) -> None:
    await zones.create_zone()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await zones.run("/bin/nothing-there")
    assert "nothing-there" in (failed.value.details() or "")
    await zones.delete()
    assert leftovers.loops(zones.folder) == []
    await zones.run("/bin/true")
    assert (await zones.wait()).exit_code == 0


async def test_delete_of_a_running_workload(zones: Zones) -> None:
    await zones.create_zone()
    await zones.run("/bin/sh", "-c", "echo begun; sleep 100")
    await zones.delete()
    await zones.delete()
    assert leftovers.loops(zones.folder) == []
    async with failing(grpc.StatusCode.NOT_FOUND):
        await zones.get()


async def test_destroy_with_everything_running(zones: Zones) -> None:
    await zones.create_zone()
    for name in ("w1", "w2", "w3"):
        await zones.run("/bin/sleep", "100", workload_id=name)
    await zones.destroy_zone()
    await zones.nothing_left()


async def test_a_long_log_is_whole(zones: Zones) -> None:
    await zones.create_zone()
    await zones.run("/bin/seq", "200000")
    assert (await zones.wait()).exit_code == 0
    assert zones.lines() == [f"stdout F {number}" for number in range(1, 200_001)]


async def test_log_continues_in_a_new_file_after_rotation(zones: Zones) -> None:
    await zones.create_zone()
    await zones.run("/bin/sh", "-c", "echo one; read x; echo two", stdin=True)
    await until(lambda: zones.log().stat().st_size > 0)
    zones.log().rename(zones.log("old"))
    await zones.clients.workloads.ReopenLog(pb.ReopenLogRequest(id="w1"), timeout=TIMEOUT)
    attach = zones.clients.workloads.Attach(
        iter([pb.AttachInput(start=pb.AttachStart(workload_id="w1")), pb.AttachInput(stdin=b"go\n")]),
        timeout=TIMEOUT,
    )
    assert await collected(attach) == (b"two\n", b"", 0)
    assert (zones.lines("old"), zones.lines()) == (["stdout F one"], ["stdout F two"])


# -- exec


async def test_exec_passes_input_outputs_and_exit_code(zones: Zones) -> None:
    await zones.create_zone()
    await zones.run("/bin/sleep", "100")
    script = "cat; echo err >&2; exit 7"
    assert await zones.exec("/bin/sh", "-c", script, stdin=b"in") == (b"in", b"err\n", 7)
    stdout, _, code = await zones.exec("/bin/seq", "300000")
    assert code == 0 and stdout == b"".join(b"%d\n" % number for number in range(1, 300_001))


async def test_late_exec_is_killed_at_its_timeout(zones: Zones) -> None:
    await zones.create_zone()
    await zones.run("/bin/sleep", "100")
    begin = time.monotonic()
    async with failing(grpc.StatusCode.DEADLINE_EXCEEDED) as said:
        await zones.exec("/bin/sleep", "77", timeout=0.3)
    assert time.monotonic() - begin < 30 and "0.3 s" in said[0]
    await _no_process(zones, "sleep", 1)


async def test_exec_ends_with_its_caller(zones: Zones) -> None:
    await zones.create_zone()
    await zones.run("/bin/sleep", "100")
    start = pb.ExecStart(workload_id="w1", process=json.dumps(busybox.process("/bin/yes")).encode())
    call = zones.clients.workloads.Exec(iter([pb.ExecInput(start=start)]), timeout=TIMEOUT)
    assert (await anext(aiter(call))).stdout.startswith(b"y\n")
    call.cancel()
    await _no_process(zones, "yes", 0)


async def test_exec_on_a_terminal(zones: Zones) -> None:
    await zones.create_zone()
    await zones.run("/bin/sleep", "100")
    process = json.dumps(busybox.process("/bin/sh", "-c", "stty size; read x; stty size", tty=True)).encode()
    start = pb.ExecStart(workload_id="w1", process=process, tty=True, stdin=True)

    async def inputs() -> AsyncIterator[pb.ExecInput]:
        yield pb.ExecInput(start=start)
        yield pb.ExecInput(resize=pb.TerminalSize(rows=33, columns=99))
        yield pb.ExecInput(stdin=b"\n")

    stdout, stderr, code = await collected(zones.clients.workloads.Exec(inputs(), timeout=TIMEOUT))
    assert code == 0 and stderr == b"" and b"33 99" in stdout


async def _no_process(zones: Zones, name: str, count: int) -> None:
    """Wait until the zone has ``count`` processes of this name."""

    def running() -> list[str]:
        return [one for one in leftovers.processes(zones.protectd.run_dir) if one.endswith(f" {name}")]

    await until(lambda: len(running()) == count)


# -- stats, watch, host


async def test_stats_tell_busy_from_idle_workloads(zones: Zones) -> None:
    await zones.create_zone("z1")
    await zones.create_zone("z2")
    await zones.run("/bin/sh", "-c", "while :; do :; done", workload_id="busy", zone_id="z1")
    await zones.run("/bin/sleep", "100", workload_id="idle", zone_id="z2")
    async with asyncio.timeout(TIMEOUT):
        while True:  # an answer omits a late zone, and the busy workload needs CPU time
            answer = await zones.clients.workloads.WorkloadStats(pb.WorkloadStatsRequest(), timeout=TIMEOUT)
            rows = {row.id: row for row in answer.rows}
            if set(rows) == {"busy", "idle"} and rows["busy"].cpu_usage_ns > rows["idle"].cpu_usage_ns:
                break
            await asyncio.sleep(0.02)
    assert (rows["busy"].zone_id, rows["idle"].zone_id) == ("z1", "z2")
    assert rows["busy"].memory_usage_bytes > 0


async def test_watch_shows_each_change_in_order(zones: Zones) -> None:
    await zones.create_zone("z1")
    call = zones.clients.host.Watch(pb.WatchRequest(), timeout=TIMEOUT)
    events = aiter(call)
    assert (await anext(events)).zone.id == "z1"
    assert (await anext(events)).HasField("synced")
    await zones.run("/bin/true")
    await zones.wait()
    await zones.destroy_zone()
    seen = []
    async for event in events:
        seen.append((event.WhichOneof("event"), event.workload.state or event.zone.state))
        if event.zone_gone:
            break
    assert seen == [
        ("workload", pb.WORKLOAD_STATE_CREATED),
        ("workload", pb.WORKLOAD_STATE_RUNNING),
        ("workload", pb.WORKLOAD_STATE_EXITED),
        ("zone", pb.ZONE_STATE_DESTROYING),
        ("workload_gone", 0),
        ("zone_gone", 0),
    ]
    call.cancel()


async def test_host_info_shows_toolstack_and_reserved_memory(zones: Zones) -> None:
    await zones.create_zone(resources=pb.ZoneResources(memory_bytes=512 * MIB))
    info = await zones.clients.host.Info(pb.InfoRequest(), timeout=TIMEOUT)
    assert (info.toolstack, info.security_boundary, list(info.profiles)) == ("fake", False, ["default"])
    assert "NO SECURITY BOUNDARY" in info.notices[0]
    assert info.memory.reserved_bytes == 512 * MIB
    assert info.memory.total_bytes == info.memory.free_bytes + info.memory.reserved_bytes


# -- refusals


async def test_invalid_zones_and_workloads_are_refused(tmp_path: Path, busybox_image: Path) -> None:
    settings = {
        "memory": {"total": "600MiB"},
        "profiles": {"small": {"memory": "64MiB", "memory_max": "64MiB"}},
    }
    async with serving(tmp_path, busybox_image, **settings) as zones:
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await zones.create_zone("No_Good")
        async with failing(grpc.StatusCode.INVALID_ARGUMENT) as said:
            await zones.create_zone(profile="none")
        assert "default, small" in said[0]
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await zones.create_zone(profile="small", resources=pb.ZoneResources(memory_bytes=65 * MIB))
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await zones.create_zone(sysctls={"vm.swappiness": "1"})
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await zones.create_zone(interfaces=2)
        await zones.create_zone("z1")
        async with failing(grpc.StatusCode.ALREADY_EXISTS):
            await zones.create_zone("z1")
        await zones.create_zone("z2")
        async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
            await zones.create_zone("z3")
        assert "256 MiB" in said[0] and "88 MiB of 600 MiB" in said[0]
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await zones.create(["/bin/true"], filesystems=stack("relative"))
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await zones.create(["/bin/true"], filesystems=stack("/nonexistent"))
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await zones.create(["/bin/true"], oci_config=b"[]")
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await zones.create(["/bin/true"], filesystems=stack(zones.image, type="ext4"))
        async with failing(grpc.StatusCode.INVALID_ARGUMENT):
            await zones.create(["/bin/true"], files=[pb.File(name="../x")])
        async with failing(grpc.StatusCode.NOT_FOUND):
            await zones.create(["/bin/true"], zone_id="nowhere")
        answer = await zones.clients.workloads.ListWorkloads(pb.ListWorkloadsRequest(), timeout=TIMEOUT)
        assert list(answer.workloads) == []


async def test_corrupt_image_is_refused(zones: Zones) -> None:
    await zones.create_zone()
    corrupt = zones.folder / "corrupt.squashfs"
    corrupt.write_bytes(b"hsqs" + b"\0" * 8188)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await zones.create(["/bin/true"], filesystems=stack(corrupt))
    assert failed.value.code() is not grpc.StatusCode.UNKNOWN
    assert leftovers.loops(zones.folder) == []
    await zones.run("/bin/true")
    assert (await zones.wait()).exit_code == 0


# -- faults of the toolstack


@pytest.mark.parametrize(("at", "kind"), [("create", "fail"), ("create", "half"), ("unpause", "fail")])
async def test_failed_creation_leaves_no_zone(
    tmp_path: Path, busybox_image: Path, at: str, kind: str
) -> None:
    faults = {"toolstack": {"fault": [{"at": at, "kind": kind}]}}
    async with serving(tmp_path, busybox_image, faults=faults) as zones:
        async with failing(grpc.StatusCode.INTERNAL) as said:
            await zones.create_zone()
        assert "injected fault" in said[0]
        await zones.nothing_left()
        await zones.create_zone()


@pytest.mark.parametrize("kind", ["fail", "half"])
async def test_failed_attach_leaves_no_loop_device(tmp_path: Path, busybox_image: Path, kind: str) -> None:
    faults = {"toolstack": {"fault": [{"at": "attach_disk", "kind": kind}]}}
    async with serving(tmp_path, busybox_image, faults=faults) as zones:
        await zones.create_zone()
        async with failing(grpc.StatusCode.INTERNAL):
            await zones.create(["/bin/true"])
        assert leftovers.loops(zones.folder) == []
        await zones.run("/bin/true")
        assert (await zones.wait()).exit_code == 0


async def test_death_during_the_boot_leaves_no_zone(tmp_path: Path, busybox_image: Path) -> None:
    faults = {"toolstack": {"fault": [{"at": "unpause", "kind": "die"}]}}
    async with serving(tmp_path, busybox_image, faults=faults) as zones:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await zones.create_zone()
        assert failed.value.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INTERNAL)
        await zones.nothing_left()


async def test_silent_boot_ends_at_its_deadline(tmp_path: Path, busybox_image: Path) -> None:
    faults = {"toolstack": {"fault": [{"at": "open_channel", "kind": "stall", "times": 0}]}}
    settings = {"faults": faults, "timeouts": {"boot": "1s"}}
    async with serving(tmp_path, busybox_image, **settings) as zones:
        async with failing(grpc.StatusCode.DEADLINE_EXCEEDED):
            await zones.create_zone()
        await zones.nothing_left()


async def test_killed_zone_ends_its_workloads(zones: Zones) -> None:
    zone = await zones.create_zone()
    await zones.run("/bin/sleep", "100")
    waiting = asyncio.create_task(zones.wait())
    await asyncio.sleep(0.1)
    # Like the destruction of a domain behind protectd's back.
    os.kill(zone.domain_id, signal.SIGKILL)
    ended = await waiting
    assert (ended.exit_code, ended.reason) == (137, "ZoneDestroyed")
    dead = await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"), timeout=TIMEOUT)
    assert dead.state == pb.ZONE_STATE_DEAD and dead.death_reason and dead.died_at_ns
    async with failing(grpc.StatusCode.FAILED_PRECONDITION):
        await zones.create(["/bin/true"], "w2")
    await zones.delete()
    await zones.destroy_zone()
