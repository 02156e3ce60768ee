"""Resources beyond a layer's bounds end a single pull: the reading process, and nothing else."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from daemonkit.faults import Broken, TooLate
from daemonkit.host.children import NICER
from images.bounds.limits import ImageLimits
from images.image_errors import Oversized
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.registry import names
from images.registry.credentials import ANONYMOUS
from tests.hostile.images.confined import assert_apart, assert_without_rights
from tests.support.images.image_manager import running
from tests.support.images.images import Blob, Layer, build, digest, write_layout
from tests.support.images.registry import LyingRegistry
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
MIB = 1 << 20
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
GOOD = build([Layer().file("ok", b"ok").tar()])


def _endless() -> Blob:
    """64 GiB of zeros with a wrong digest: nobody waits for their end."""
    info = tarfile.TarInfo("zeros")
    info.size = 63 << 30
    piece = gzip.compress(bytes(256 * MIB), mtime=0)
    return Blob(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)) + piece * 256, digest(b""), LAYER)


DIFF_ID = _endless().diff_id
ENDLESS = build([_endless()])
DAEMON = """
import asyncio, sys
from pathlib import Path
from images.manager import ImageManager
from images.image_settings import ImageSettings

async def pull():
    state = Path(sys.argv[1])
    manager = ImageManager(ImageSettings(state, state / "certs.d"))
    await manager.start()
    await manager.import_layout(Path(sys.argv[2]), None)

asyncio.run(pull())
"""


def _settings(state: Path, **limits: int) -> ImageSettings:
    return ImageSettings(state, state / "certs.d", limits=ImageLimits(**limits))


def _children(parent: int) -> dict[int, str]:
    """Child processes by pid, with their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found[int(path.parent.name)] = (path.parent / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _parents(daemon: int | None = None) -> list[int]:
    found = _children(daemon or os.getpid())
    return [pid for pid, command in found.items() if "images.worker" in command]


def _workers(daemon: int | None = None) -> list[int]:
    return [pid for pid in _forked(daemon) if _name(pid) != "tar2sqfs"]


def _reading() -> bool:
    """Whether a layer is read: the workers for documents have ended when its converter begins."""
    return bool(_workers() and _converters())


def _readers() -> list[int]:
    """The workers whose parent also started the converter: those without network."""
    beside = [
        children for parent in _parents() if "tar2sqfs" in map(_name, children := list(_children(parent)))
    ]
    return [pid for children in beside for pid in children if _name(pid) != "tar2sqfs"]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _converters() -> list[int]:
    return [pid for pid in _forked() if _name(pid) == "tar2sqfs"]


def _forked(daemon: int | None = None) -> list[int]:
    return [pid for parent in _parents(daemon) for pid in _children(parent)]


def _name(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "tar2sqfs"


def _alive(pids: list[int]) -> list[int]:
    """Processes that have not ended, reaped or not."""
    found = []
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(pid)
    return found


async def _goes_on(manager: ImageManager, tmp_path: Path) -> None:
    """The daemon has nothing left of the worker, and imports another image."""
    await manager.pulls.drain()
    assert _workers() == []
    assert list(manager.store.files.ingest.iterdir()) == []
    ((image, _),) = await manager.import_layout(write_layout(tmp_path / "good", GOOD), None)
    assert image.id == GOOD.id
    assert _workers() == []


async def test_layer_beyond_its_cpu_time_ends_its_pull_alone(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", ENDLESS)
    async with running(_settings(tmp_path / "state", cpu_seconds=1)) as manager:
        with pytest.raises(Oversized, match=r"more than 1 s of CPU time.*images\.limits\.cpu_seconds"):
            await manager.import_layout(layout, None)
        await _goes_on(manager, tmp_path)


async def test_layer_beyond_its_memory_limit_ends_its_pull_alone(tmp_path: Path) -> None:
    """Memory outside of the layer's limits."""
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
        await until(_reading)
        workers = _workers()
        # The worker may ignore all other signals.
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        await _goes_on(manager, tmp_path)
        assert not _alive(workers)


@pytest.mark.parametrize(
    ("whom", "number", "said"),
    [
        ("worker", signal.SIGKILL, r"was killed \(is the host out of memory"),
        ("worker", signal.SIGSEGV, "ended by signal 11"),
        ("worker", signal.SIGSYS, "made a system call that no worker may make, and was killed"),
        ("parent", signal.SIGKILL, "the process that read it"),
    ],
)
async def test_killed_process_fails_its_own_pull_alone(
    tmp_path: Path, whom: str, number: int, said: str
) -> None:
    layout = write_layout(tmp_path / "layout", ENDLESS)
    async with running(_settings(tmp_path / "state")) as manager:
        pull = asyncio.create_task(manager.import_layout(layout, None))
        await until(_reading)
        workers = _workers()
        for pid in workers if whom == "worker" else _parents():
            os.kill(pid, number)
        with pytest.raises(Broken, match=f"unpack layer {DIFF_ID}: .*{said}"):
            await pull
        await _goes_on(manager, tmp_path)
        # Workers end with their parent.
        await until(lambda: not _alive(workers))


async def test_workers_are_ended_before_daemons_when_memory_is_short(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", ENDLESS)
    async with running(_settings(tmp_path / "state")) as manager:
        pull = asyncio.create_task(manager.import_layout(layout, None))
        await until(lambda: _workers() and _converters())
        forked = (*_workers(), *_converters(), *_parents())
        scores = {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in forked}
        assert scores == {"500\n"}
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull


def _niceness(pids: Iterable[int]) -> set[int]:
    """The niceness of all their threads."""
    found = set[int]()
    for pid in pids:
        found |= {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has namespaces and ids to give")
async def test_workers_and_the_converter_have_no_rights(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", ENDLESS)
    async with running(_settings(tmp_path / "state")) as manager:
        pull = asyncio.create_task(manager.import_layout(layout, None))
        await until(lambda: _workers() and _converters())
        forked = [*_workers(), *_converters()]
        # Both are confined first thing.
        await until(lambda: all("Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text() for pid in forked))
        for pid in forked:
            assert_without_rights(pid)
            assert_apart(pid)
        (converter,) = _converters()
        await until(lambda: "tar2sqfs" in Path(f"/proc/{converter}/cmdline").read_text())
        top = Path(f"/proc/{converter}/root")
        files = {path.name for path in top.rglob("*") if path.is_file()}
        assert {"out", "tar2sqfs"} < files
        assert all(name in ("out", "tar2sqfs") or ".so" in name for name in files)
        kinds = {os.readlink(one).partition(":")[0] for one in Path(f"/proc/{converter}/fd").iterdir()}
        # A file without a name is for the worker's messages.
        assert {kind for kind in kinds if not kind.endswith("(deleted)")} <= {"/dev/null", "/out", "pipe"}
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        await _goes_on(manager, tmp_path)
        (image,) = (tmp_path / "state").rglob("*.squashfs")
        assert image.stat().st_uid == 0


async def test_converter_unable_to_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/tar2sqfs"
    tool.write_text("#!/bin/sh\nexit 0\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    async with running(_settings(tmp_path / "state")) as manager:
        with pytest.raises(Broken, match="tar2sqfs ended with 127: it cannot be run: .*No such file"):
            await manager.import_layout(write_layout(tmp_path / "good", GOOD), None)


async def test_workers_make_way_for_the_daemons_and_long_ones_for_short_ones(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", ENDLESS)
    own = _niceness([os.getpid()])
    async with running(_settings(tmp_path / "state")) as manager:
        pull = asyncio.create_task(manager.import_layout(layout, None))
        await until(lambda: _workers() and _converters())
        forked = [*_workers(), *_converters()]
        await until(lambda: min(_niceness(forked)) >= min(min(own) + NICER, 19))
        assert _niceness([os.getpid(), *_parents()]) == own, "the daemon does not, nor what only forks"
        # An endless layer takes more time than a small image needs.
        await until(lambda: set(map(os.sched_getscheduler, _workers())) == {os.SCHED_IDLE})
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull


async def test_workers_have_a_session_of_low_priority(tmp_path: Path) -> None:
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("the kernel shares the CPUs among all processes alike")
    layout = write_layout(tmp_path / "layout", ENDLESS)
    async with running(_settings(tmp_path / "state")) as manager:
        pull = asyncio.create_task(manager.import_layout(layout, None))
        await until(_workers)
        sessions = {Path(f"/proc/{pid}/autogroup").read_text() for pid in (*_parents(), *_workers())}
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
    (session,) = sessions
    assert session.split()[1:] == ["nice", str(NICER)]
    assert session != Path("/proc/self/autogroup").read_text()


async def test_a_tenant_in_debt_starts_low_priority_workers_only(tmp_path: Path) -> None:
    """A tenant is a registry. Short pulls add up."""

    async def scheduler(manager: ImageManager, registry: LyingRegistry) -> int:
        """Scheduling class of a new converter; the pull is cancelled after the tenant's burst of CPU time."""
        pull = asyncio.create_task(manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS))
        await until(_reading)
        (found,) = set(map(os.sched_getscheduler, _converters()))
        await until(lambda: max(map(_cpu_seconds, _readers()), default=0) > 0.7)
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        await until(lambda: not _forked())
        return found

    image = build([_endless()])
    with LyingRegistry("app", "1", image) as hostile, LyingRegistry("app", "1", image) as honest:
        async with running(_settings(tmp_path / "state")) as manager:
            assert await scheduler(manager, hostile) == os.SCHED_OTHER
            assert await scheduler(manager, hostile) == os.SCHED_IDLE
            assert await scheduler(manager, honest) == os.SCHED_OTHER


async def test_a_deadline_is_heard(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", ENDLESS)
    settings = dataclasses.replace(_settings(tmp_path / "state"), pull_seconds=2.0)
    async with running(settings) as manager:
        with pytest.raises(TooLate):
            await manager.import_layout(layout, None)
        await _goes_on(manager, tmp_path)


async def test_nothing_outlives_a_killed_daemon(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", ENDLESS)
    (tmp_path / "state").mkdir()
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, str(tmp_path / "state"), str(layout)])
    try:
        await until(lambda: _workers(daemon.pid))
        left = [*_parents(daemon.pid), *_workers(daemon.pid)]
        # Not even a worker that cannot see the end of its pipes.
        os.kill(left[-1], signal.SIGSTOP)
    finally:
        daemon.kill()
        daemon.wait()
    await until(lambda: not _alive(left))


async def test_the_parent_stays_for_the_next_pull(tmp_path: Path) -> None:
    """A small image does not pay for an interpreter; there is none before the first, and after the end."""
    async with running(_settings(tmp_path / "state")) as manager:
        assert _parents() == []
        await manager.import_layout(write_layout(tmp_path / "good", GOOD), None)
        (parent,) = _parents()
        other = build([Layer().file("other", b"ok").tar()])
        await manager.import_layout(write_layout(tmp_path / "other", other), None)
        assert _parents() == [parent]
        # The worker has the modules that read layers, and nothing else of the daemon.
        assert "libssl" not in Path(f"/proc/{parent}/maps").read_text()
    assert _alive([parent]) == []
