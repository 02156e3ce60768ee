"""Log paths without a plain file: pipes, devices, and file systems that do not answer."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
from pathlib import Path

import grpc
import pytest

from daemonkit.host.host_calls import HostCalls, open_plain
from tests.support.protect.disk_source import DiskSource
from tests.support.protect.zones import TIMEOUT, Zones, failing, needs_protectd
from tests.support.waiting import until

pytestmark = [pytest.mark.root, needs_protectd]
REFUSED = grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture
async def zone(zones: Zones) -> Zones:
    await zones.create_zone()
    return zones


async def _others_run(zones: Zones, name: str) -> None:
    await zones.run("/bin/echo", "alive", workload_id=name)
    assert (await zones.wait(name)).exit_code == 0
    assert zones.lines(name) == ["stdout F alive"]


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "directory", "link"])
async def test_log_path_without_a_plain_file_is_refused(zone: Zones, tmp_path: Path, kind: str) -> None:
    path = zone.log("w1")
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to("/dev/null")
    async with failing(REFUSED) as said:
        await zone.create(["/bin/echo"])
    assert "not a plain file" in said[0]
    await _others_run(zone, "w2")
    path.rmdir() if kind == "directory" else path.unlink()


@pytest.mark.parametrize("reader", [False, True])
async def test_log_replaced_by_a_pipe_blocks_its_own_output_alone(zone: Zones, reader: bool) -> None:
    """Across a restart, too; and nothing is lost once there is a file again."""
    await zone.run("/bin/sh", "-c", "trap 'echo two; exit' TERM; echo one; while sleep 0.1; do :; done")
    path = zone.log()
    await until(lambda: zone.lines() == ["stdout F one"])
    path.rename(path.with_name("old"))
    os.mkfifo(path)
    other_end = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if reader else -1
    zone.protectd.daemon.kill()
    await zone.protectd.daemon.ended()
    await asyncio.wait_for(zone.protectd.daemon.start(), TIMEOUT)
    await _others_run(zone, "w2")
    await zone.signal(15)
    await _others_run(zone, "w3")
    path.unlink()
    await zone.wait()
    assert path.with_name("old").read_text().endswith("stdout F one\n")
    assert zone.lines() == ["stdout F two"]
    if other_end >= 0:
        assert not os.read(other_end, 100), "the log was written into a pipe"
        os.close(other_end)


async def test_silent_file_system_blocks_its_own_logs_alone(zone: Zones, source: DiskSource) -> None:
    subprocess.run(["fsfreeze", "--freeze", source.path], check=True)
    try:
        stuck = [
            asyncio.create_task(zone.create(["/bin/echo"], f"s{n}", log_path=str(source.path / f"{n}.log")))
            for n in range(8)
        ]
        await _others_run(zone, "w2")
        assert not any(each.done() for each in stuck)
        for each in stuck:
            async with failing(REFUSED) as said:
                await each
            assert "did not answer within" in said[0]
        # Not even begun while the earlier call hangs.
        async with failing(REFUSED) as said:
            await zone.create(["/bin/echo"], "s0", log_path=str(source.path / "0.log"))
        assert "has not come back" in said[0]
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", source.path], check=True)
    await until(lambda: len(os.listdir(source.path)) > 8)
    await zone.create(["/bin/echo"], "s0", log_path=str(source.path / "0.log"))
    await zone.delete("s0")


async def test_no_more_calls_wait_than_there_may(tmp_path: Path) -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def held() -> int:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return open_plain(tmp_path / "file", os.O_WRONLY | os.O_CREAT)

    calls = HostCalls(seconds=0.05, most=3)
    late: list[int] = []
    tried = [asyncio.create_task(calls.run(str(n), held, late.append)) for n in range(5)]
    errors = [str(each) for each in await asyncio.gather(*tried, return_exceptions=True)]
    assert sum("did not answer within" in each for each in errors) == 3
    assert sum("has not come back" in each for each in errors) == 2
    release.set()
    await until(lambda: len(late) >= 1)
    for descriptor in late:
        os.close(descriptor)
    assert await calls.run("1", lambda: 7) == 7


async def test_stuck_calls_of_a_pod_do_not_keep_others_out() -> None:
    """A pod may have many containers, each with a log of its own."""
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    calls = HostCalls(seconds=0.05)

    def held() -> bool:
        return asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

    mine = [asyncio.create_task(calls.run(f"a/{n}", held, owner="a")) for n in range(100)]
    mine += [asyncio.create_task(calls.run(f"log {n}", held)) for n in range(100)]
    errors = [str(each) for each in await asyncio.gather(*mine, return_exceptions=True)]
    assert sum("has not come back" in each for each in errors[:100]) == 84
    assert not any("has not come back" in each for each in errors[100:])
    assert await calls.run("b", lambda: 7, owner="b") == 7
    release.set()
    await asyncio.gather(*(calls.run(f"log {n}", lambda: None) for n in range(100)))
    await asyncio.gather(*(calls.run(f"a/{n}", lambda: None, owner="a") for n in range(16)))


async def test_repeated_call_waits_for_its_cancelled_predecessor(tmp_path: Path) -> None:
    """A caller that was cancelled leaves a call behind, and begins anew at once."""
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    calls = HostCalls()
    first = asyncio.create_task(
        calls.run("k", lambda: asyncio.run_coroutine_threadsafe(release.wait(), loop).result())
    )
    await asyncio.sleep(0)
    first.cancel()
    again = asyncio.create_task(calls.run("k", lambda: 7))
    await asyncio.wait([first])
    assert not again.done()
    release.set()
    assert await asyncio.wait_for(again, TIMEOUT) == 7
