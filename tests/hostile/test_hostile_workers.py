"""Whatever a layer takes beyond its bounds ends one pull: the process that reads it, and nothing else."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cri.images.errors import Oversized
from cri.images.manager import ImageManager
from cri.images.settings import ImageLimits, ImageSettings
from daemonkit.faults import Broken
from tests.support.images.image_manager import running
from tests.support.images.images import Blob, Layer, build, digest, write_layout

pytestmark = pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
MIB = 1 << 20
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
GOOD = build([Layer().file("ok", b"ok").tar()])


def _endless() -> Blob:
    """64 GiB of zeros, whose digest is wrong: nobody waits for their end."""
    info = tarfile.TarInfo("zeros")
    info.size = 63 << 30
    piece = gzip.compress(bytes(256 * MIB), mtime=0)
    return Blob(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)) + piece * 256, digest(b""), LAYER)


ENDLESS = build([_endless()])


def _settings(state: Path, **limits: int) -> ImageSettings:
    return ImageSettings(state, state / "certs.d", limits=ImageLimits(**limits))


def _children(parent: int) -> dict[int, str]:
    """Processes by their numbers, with their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found[int(path.parent.name)] = (path.parent / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _parents() -> list[int]:
    return [pid for pid, command in _children(os.getpid()).items() if "cri.images.worker" in command]


def _workers() -> list[int]:
    return [pid for parent in _parents() for pid in _children(parent)]


async def _until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - processes of others come and go without a word to us
            await asyncio.sleep(0.02)


async def _goes_on(manager: ImageManager, tmp_path: Path) -> None:
    """The daemon has nothing left of it, and imports another image."""
    await manager.drain()
    assert _parents() == []
    assert list(manager.store.files.ingest.iterdir()) == []
    ((image, _),) = await manager.import_layout(write_layout(tmp_path / "good", GOOD), None)
    assert image.id == GOOD.id
    assert _parents() == []


async def test_too_much_cpu_time(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", ENDLESS)
    async with running(_settings(tmp_path / "state", cpu_seconds=1)) as manager:
        with pytest.raises(Oversized, match=r"more than 1 s of CPU time.*images\.limits\.cpu_seconds"):
            await manager.import_layout(layout, None)
        await _goes_on(manager, tmp_path)


async def test_too_much_memory(tmp_path: Path) -> None:
    """Something that nobody weighs."""
    info = tarfile.TarInfo("etc/passwd")
    info.size = 1 << 30
    tar = info.tobuf(tarfile.GNU_FORMAT)
    data = gzip.compress(tar) + gzip.compress(bytes(256 * MIB), mtime=0) * 4
    layout = write_layout(tmp_path / "layout", build([Blob(data, digest(b""), LAYER)]))
    limits = {"memory_bytes": 16 * MIB, "account_file_bytes": 2 << 30}
    async with running(_settings(tmp_path / "state", **limits)) as manager:
        with pytest.raises(Oversized, match=r"images\.limits\.memory_bytes"):
            await manager.import_layout(layout, None)
        await _goes_on(manager, tmp_path)


async def test_a_cancelled_pull_kills_its_workers(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", ENDLESS)
    async with running(_settings(tmp_path / "state")) as manager:
        pull = asyncio.create_task(manager.import_layout(layout, None))
        await _until(_workers)
        workers = _workers()
        # It may be deaf to everything else.
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        await _goes_on(manager, tmp_path)
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.parametrize("whom", ["worker", "parent"])
async def test_what_is_killed_fails_its_pull_alone(tmp_path: Path, whom: str) -> None:
    layout = write_layout(tmp_path / "layout", ENDLESS)
    async with running(_settings(tmp_path / "state")) as manager:
        pull = asyncio.create_task(manager.import_layout(layout, None))
        await _until(_workers)
        workers = _workers()
        for pid in workers if whom == "worker" else _parents():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(Broken, match="the process that read it"):
            await pull
        await _goes_on(manager, tmp_path)
        # Workers end with their parent.
        await _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


async def test_workers_are_ended_before_daemons_when_memory_is_short(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", ENDLESS)
    async with running(_settings(tmp_path / "state")) as manager:
        pull = asyncio.create_task(manager.import_layout(layout, None))
        await _until(_workers)
        scores = {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in (*_workers(), *_parents())}
        assert scores == {"500\n"}
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
