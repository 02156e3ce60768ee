"""A slow disk sends file work to threads; no caller leaves the work behind."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from protect.stdio import disk
from protect.stdio.disk import LogDisk


async def test_quick_work_runs_on_the_loop_and_slow_work_in_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = threading.get_ident()
    worker = LogDisk()
    assert await worker.run(threading.get_ident) == here
    await worker.run(lambda: time.sleep(disk.SLOW_SECONDS * 2))
    assert worker.slow
    assert await worker.run(threading.get_ident) != here
    monkeypatch.setattr(disk, "SLOW_FOR_SECONDS", 0.0)
    await worker.run(lambda: time.sleep(disk.SLOW_SECONDS * 2))
    assert not worker.slow
    assert await worker.run(threading.get_ident) == here


async def test_the_loop_goes_on_beside_slow_work() -> None:
    worker = LogDisk()
    await worker.run(lambda: time.sleep(disk.SLOW_SECONDS * 2))
    release = threading.Event()
    work = asyncio.create_task(worker.run(release.wait))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not work.done()
    release.set()
    assert await work is True


async def test_a_cancelled_caller_waits_for_the_work_under_way(tmp_path: Path) -> None:
    worker = LogDisk()
    await worker.run(lambda: time.sleep(disk.SLOW_SECONDS * 2))
    begun, release = threading.Event(), threading.Event()
    done: list[str] = []

    def write() -> None:
        begun.set()
        release.wait()
        done.append("written")

    work = asyncio.create_task(worker.run(write))
    await asyncio.to_thread(begun.wait)
    for _ in range(3):
        work.cancel()
        await asyncio.sleep(0.01)
        assert not work.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert done == ["written"]


async def test_errors_come_through_from_both_places() -> None:
    worker = LogDisk()

    def fail() -> None:
        time.sleep(disk.SLOW_SECONDS * 2)
        raise OSError(28, "No space left on device")

    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            await worker.run(fail)
    assert worker.slow
