"""WorkloadLog: whole lines, exactly once, killed at any step."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from daemonkit.faults import Broken, Exhausted, Refused
from protect.stdio.fanout import QUEUE_BYTES
from protect.stdio.journal import Journal
from protect.stdio.log import LINES_PER_APPEND, WorkloadLog
from tests.support.logs.log_reader import log_files, read_log
from tests.support.logs.log_writer import content

ROOT = Path(__file__).parents[4]


async def test_lines_of_both_streams_and_an_unterminated_end(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = await WorkloadLog.open(str(path), tmp_path / "j")
    assert await log.stdout.write(b"one\ntw") == 4
    assert await log.stderr.write(b"err\n") == 4
    assert await log.stdout.write(b"o\nend") == 8
    await log.stdout.finish()
    assert log.stdout.consumed == 11 and log.stdout.finished and not log.stderr.finished
    await log.close()
    await log.close()
    tails = [line.split(b" ", 1)[1] for line in path.read_bytes().splitlines()]
    assert tails == [b"stdout F one", b"stderr F err", b"stdout F two", b"stdout P end"]
    assert path.stat().st_mode & 0o777 == 0o640


async def test_offsets_survive_and_partial_lines_come_again(tmp_path: Path) -> None:
    path, journal = tmp_path / "0.log", tmp_path / "j"
    log = await WorkloadLog.open(str(path), journal)
    await log.stdout.write(b"one\npart")
    # No close: the process is gone.
    again = await WorkloadLog.open(str(path), journal)
    assert again.stdout.consumed == 4
    await again.stdout.write(b"partial\n")
    assert read_log(path)["stdout"] == b"one\npartial\n"


async def test_newlines_do_not_make_an_append_long(tmp_path: Path) -> None:
    """In the file each takes some 45 bytes: a long append would make the disk look slow, to all logs."""
    path = tmp_path / "0.log"
    sizes = [0]
    log = await WorkloadLog.open(
        str(path),
        tmp_path / "j",
        lambda step: sizes.append(path.stat().st_size) if step == "written" else None,
    )
    assert await log.stdout.write(b"\n" * 65_536) == 65_536
    assert max(after - before for before, after in pairwise(sizes)) < 50 * LINES_PER_APPEND
    assert path.read_bytes().count(b"\n") == 65_536
    await log.stdout.write(b"x\n" * LINES_PER_APPEND + b"rest")
    await log.stdout.write(b" of it\n")
    assert read_log(path)["stdout"] == b"\n" * 65_536 + b"x\n" * LINES_PER_APPEND + b"rest of it\n"
    await log.close()


async def test_an_empty_path_consumes_and_drops(tmp_path: Path) -> None:
    log = await WorkloadLog.open("", tmp_path / "j")
    assert await log.stdout.write(b"one\npart") == 4
    again = await WorkloadLog.open("", tmp_path / "j")
    assert again.stdout.consumed == 4
    with pytest.raises(Refused):
        await again.reopen()
    await again.stdout.finish()
    assert again.stdout.finished
    assert os.listdir(tmp_path) == ["j"]


async def test_an_unopenable_new_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="No such file"):
        await WorkloadLog.open(str(tmp_path / "missing" / "0.log"), tmp_path / "j")
    assert not (tmp_path / "j").exists()


async def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "0.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused):
        await WorkloadLog.open(str(tmp_path / "0.log"), tmp_path / "j")
    assert not (tmp_path / "elsewhere").exists()


async def test_a_damaged_journal_is_broken(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"x" * 4096)
    with pytest.raises(Broken):
        await WorkloadLog.open(str(tmp_path / "0.log"), tmp_path / "j")
    (tmp_path / "j").write_bytes(b"")
    with pytest.raises(Broken):
        await WorkloadLog.open(str(tmp_path / "0.log"), tmp_path / "j")


async def test_a_rotation_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = await WorkloadLog.open(str(path), tmp_path / "j")
    await log.stdout.write(b"one\n")
    path.rename(tmp_path / "0.log.1")
    await log.stdout.write(b"two\n")
    await log.reopen()
    await log.stdout.write(b"three\n")
    assert read_log(tmp_path / "0.log.1")["stdout"] == b"one\ntwo\n"
    assert read_log(path)["stdout"] == b"three\n"


async def test_a_failed_reopen_keeps_the_old_file(tmp_path: Path) -> None:
    directory = tmp_path / "pod"
    directory.mkdir()
    log = await WorkloadLog.open(str(directory / "0.log"), tmp_path / "j")
    directory.rename(tmp_path / "moved")
    with pytest.raises(Refused):
        await log.reopen()
    await log.stdout.write(b"one\n")
    assert read_log(tmp_path / "moved" / "0.log")["stdout"] == b"one\n"


async def test_a_known_log_waits_for_its_missing_directory(tmp_path: Path) -> None:
    directory = tmp_path / "pod"
    directory.mkdir()
    log = await WorkloadLog.open(str(directory / "0.log"), tmp_path / "j")
    await log.stdout.write(b"one\n")
    await log.close()
    (directory / "0.log").unlink()
    directory.rmdir()
    log = await WorkloadLog.open(str(directory / "0.log"), tmp_path / "j")
    assert "No such file" in log.trouble
    writing = asyncio.create_task(log.stdout.write(b"two\n"))
    await asyncio.sleep(0.05)
    assert not writing.done()
    directory.mkdir()
    assert await asyncio.wait_for(writing, 60) == 8
    assert log.trouble == ""
    assert read_log(directory / "0.log")["stdout"] == b"two\n"


class Killed(BaseException):
    """Stands for SIGKILL: no code of ours runs after it (mappings and files stay)."""


def _torn(path: Path, journal: Path, rng: random.Random) -> None:
    """What a kill in the middle of write(2) leaves: some of the append is in the file."""
    pending = Journal.open(journal).pending
    if pending is not None and path.exists() and path.stat().st_size == pending.size:
        with path.open("ab") as file:
            file.write(b"#" * rng.randint(0, pending.length - 1))


@pytest.mark.parametrize("seed", range(40))
async def test_killed_at_every_step(tmp_path: Path, seed: int) -> None:
    """Each life is killed after a random number of steps; the log is the streams, once each."""
    rng = random.Random(seed)
    path, journal = tmp_path / "0.log", tmp_path / "j"
    whole = {name: content(name, 120_000) for name in ("stdout", "stderr")}
    lives = 0
    while True:
        lives += 1
        left = rng.randint(1, 40)

        def step(name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed

        try:
            log = await WorkloadLog.open(str(path), journal, step)
            at = {name: getattr(log, name).consumed for name in whole}
            while any(at[name] < len(whole[name]) for name in whole):
                name = rng.choice([name for name in whole if at[name] < len(whole[name])])
                piece = whole[name][at[name] : at[name] + rng.randint(1, 9000)]
                await getattr(log, name).write(piece)
                at[name] += len(piece)
            for name in whole:
                if not getattr(log, name).finished:
                    await getattr(log, name).finish()
            break
        except Killed:
            if rng.random() < 0.3:
                _torn(path, journal, rng)
            if rng.random() < 0.2 and path.exists():
                path.rename(path.with_name(f"0.log.{lives:06d}"))
    assert lives > 1
    assert read_log(*log_files(path)) == whole


async def test_killed_at_each_single_step(tmp_path: Path) -> None:
    """The first life ends after exactly n steps, for every possible n."""
    for last in range(1, 200):
        directory = tmp_path / str(last)
        directory.mkdir()
        path, journal = directory / "0.log", directory / "j"
        whole = b"one\ntwo\n" + b"x" * 40_000 + b"\nend"
        count = 0

        def step(name: str, last: int = last) -> None:
            nonlocal count
            count += 1
            if count == last:
                raise Killed

        killed = False
        try:
            log = await WorkloadLog.open(str(path), journal, step)
            await log.stdout.write(whole[:4])
            await log.stdout.write(whole[4:])
            await log.reopen()
            await log.stdout.finish()
        except Killed:
            killed = True
        log = await WorkloadLog.open(str(path), journal)
        await log.stdout.write(whole[log.stdout.consumed :])
        if not log.stdout.finished:
            await log.stdout.finish()
        assert read_log(path)["stdout"] == whole
        if not killed:
            assert count > 10
            return
    pytest.fail("the steps never end")


@pytest.mark.slow
@pytest.mark.parametrize("rotating", [False, True])
def test_sigkill_of_a_real_writer(tmp_path: Path, rotating: bool) -> None:
    """Up to fifty lives, each ended by SIGKILL at a random moment of a write."""
    size = 6_000_000
    rng = random.Random(rotating)
    expected = {name: content(name, size) for name in ("stdout", "stderr")}
    kills = 0
    for number in range(20):  # one log, unless the log is complete before enough kills of its writer
        folder = tmp_path / str(number)
        folder.mkdir()
        kills += _lives(folder, size, rotating, rng)
        assert read_log(*log_files(folder / "0.log")) == expected
        if kills >= 25:
            return
    pytest.fail(f"the writer was too quick: {kills} kills")


def _lives(folder: Path, size: int, rotating: bool, rng: random.Random) -> int:
    """Continue until the log is complete; returns the number of kills of its writer."""
    command = [
        sys.executable,
        "-m",
        "tests.support.logs.log_writer",
        str(folder / "0.log"),
        str(folder / "j"),
    ]
    command += [str(size), *(["rotate"] if rotating else [])]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
    kills = 0
    while True:
        with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begun\n"
            try:
                child.wait(timeout=rng.random() * 0.004 if kills < 50 else 60)
            except subprocess.TimeoutExpired:
                child.kill()
                kills += 1
            if child.stdout.read() == b"done\n":
                return kills
        assert child.returncode == -9


async def test_a_full_disk_holds_the_stream_back_and_loses_nothing(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes writes short and then fail, as a full disk does."""
    path = tmp_path / "0.log"
    log = await WorkloadLog.open(str(path), tmp_path / "j")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        await log.stdout.write(b"first\n")
        writing = asyncio.create_task(log.stdout.write(b"x" * 9000 + b"\n" + b"y" * 9000 + b"\n"))
        other = await WorkloadLog.open(str(tmp_path / "1.log"), tmp_path / "j1")
        assert await other.stdout.write(b"goes on\n") == 8
        await asyncio.sleep(0.05)
        assert not writing.done()
        assert log.trouble
        assert read_log(path)["stdout"] == b"first\n"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await asyncio.wait_for(writing, 60) == 6 + 2 * 9001
    assert log.trouble == ""
    assert read_log(path)["stdout"] == b"first\n" + b"x" * 9000 + b"\n" + b"y" * 9000 + b"\n"


async def test_cancelled_while_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = await WorkloadLog.open(str(path), tmp_path / "j")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        writing = asyncio.create_task(log.stdout.write(b"x" * 1000 + b"\n"))
        await asyncio.sleep(0.05)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await log.close()
    again = await WorkloadLog.open(str(path), tmp_path / "j")
    assert again.stdout.consumed == 0
    await again.stdout.write(b"x" * 1000 + b"\n")
    assert read_log(path)["stdout"] == b"x" * 1000 + b"\n"


async def test_live_reader_gets_output_after_its_subscription(tmp_path: Path) -> None:
    log = await WorkloadLog.open("", tmp_path / "j")
    await log.stdout.write(b"before\n")
    reader = log.subscribe()
    await log.stdout.write(b"part")
    await log.stderr.write(b"err")
    await log.close()
    assert [chunk async for chunk in reader] == [("stdout", b"part"), ("stderr", b"err")]
    assert [chunk async for chunk in log.subscribe()] == []


async def test_a_slow_reader_is_cut_off_and_the_log_goes_on(tmp_path: Path) -> None:
    log = await WorkloadLog.open("", tmp_path / "j")
    slow, quick = log.subscribe(), log.subscribe()
    total = 0
    piece = b"x" * 65_535 + b"\n"
    for _ in range(QUEUE_BYTES // len(piece) + 2):
        total = await log.stdout.write(piece)
        assert (await anext(quick))[1] == piece
    assert total == len(piece) * (QUEUE_BYTES // len(piece) + 2)
    with pytest.raises(Exhausted):
        async for _ in slow:
            pass


async def test_too_many_readers_are_refused(tmp_path: Path) -> None:
    log = await WorkloadLog.open("", tmp_path / "j")
    readers = [log.subscribe() for _ in range(16)]
    with pytest.raises(Exhausted):
        log.subscribe()
    readers[0].close()
    log.subscribe()
