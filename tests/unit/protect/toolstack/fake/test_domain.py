"""The fake toolstack's records of a domain, and its processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from protect.model.toolstack import DomainId, DomainSpec, DomainState, Mode, ShutdownReason
from protect.toolstack.fake.domain import Domain, read_pid, read_spec, write_spec
from protect.toolstack.fake.launcher import Launch
from protect.toolstack.pidfd_process import PidfdProcess, read_stat
from tests.support.session.open_files import descriptors, opened_since
from tests.support.waiting import until

ID = UUID("01234567-89ab-cdef-0123-456789abcdef")
PLAIN = DomainSpec(uuid=ID, name="web", memory_bytes=64 << 20)
FULL = DomainSpec(
    uuid=ID,
    name="web",
    memory_bytes=64 << 20,
    vcpus=3,
    mode=Mode.PVH,
    interfaces=2,
    environment={"A": "b"},
    netns="/run/netns/x",
    shared=Path("/run/shared"),
)


@pytest.mark.parametrize("spec", [PLAIN, FULL])
async def test_a_specification_survives_the_daemon(tmp_path: Path, spec: DomainSpec) -> None:
    assert await read_spec(tmp_path) is None
    write_spec(tmp_path, spec)
    assert await read_spec(tmp_path) == spec
    assert os.listdir(tmp_path) == ["spec.json"]


async def test_a_specification_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """An earlier version had no namespaces to share."""
    write_spec(tmp_path, FULL)
    values = json.loads((tmp_path / "spec.json").read_text())
    del values["netns"], values["shared"]
    (tmp_path / "spec.json").write_text(json.dumps(values))
    found = await read_spec(tmp_path)
    assert found is not None and (found.netns, found.shared, found.vcpus) == ("", None, 3)


def test_the_pid_is_read_with_its_start_time(tmp_path: Path) -> None:
    assert read_pid(tmp_path) is None
    (tmp_path / "pid").write_text("12 3456\n")
    assert read_pid(tmp_path) == (12, 3456)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (None, ShutdownReason.CRASH),
        ("poweroff\n", ShutdownReason.POWEROFF),
        ("reboot\n", ShutdownReason.REBOOT),
        ("crash\n", ShutdownReason.CRASH),
        ("killed\n", ShutdownReason.DESTROYED),
        ("\xff?", ShutdownReason.UNKNOWN),
    ],
)
def test_status_file_gives_the_reason_of_the_end(
    tmp_path: Path, status: str | None, reason: ShutdownReason
) -> None:
    if status is not None:
        (tmp_path / "status").write_bytes(status.encode("latin-1"))
    domain = Domain(PLAIN, tmp_path, DomainId(1), None, None)
    assert domain.end_reason() is reason
    assert domain.state is DomainState.SHUTDOWN


async def test_the_states_of_a_process_are_read(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec("sleep", "1000")
    stat = read_stat(child.pid)
    assert stat is not None and stat.parent == os.getpid() and stat.state in "RSD"
    process = PidfdProcess.open(child.pid, stat.starttime)
    assert process is not None
    domain = Domain(PLAIN, tmp_path, DomainId(child.pid), process, None)

    def state() -> DomainState:
        return domain.state

    assert state() is DomainState.RUNNING
    assert process.signal(signal.SIGSTOP)
    await until(lambda: state() is DomainState.PAUSED)
    assert process.signal(signal.SIGCONT)
    process.kill()
    await asyncio.gather(process.wait(), process.wait())
    assert await child.wait() == -signal.SIGKILL
    assert process.stat() is None and not process.signal(signal.SIGCONT)
    assert state() is DomainState.SHUTDOWN
    domain.release()
    domain.release()
    assert not process.signal(signal.SIGTERM)


async def test_closing_the_process_ends_the_wait() -> None:
    child = await asyncio.create_subprocess_exec("sleep", "1000")
    process = PidfdProcess.open(child.pid)
    assert process is not None
    waiting = asyncio.create_task(process.wait())
    await asyncio.sleep(0)
    process.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert child.returncode is None
    child.kill()
    await child.wait()


async def test_other_processes_are_not_taken() -> None:
    """A zombie, another process with the number, a process that is gone."""
    before = descriptors()
    stat = read_stat(os.getpid())
    assert stat is not None and PidfdProcess.open(os.getpid(), stat.starttime + 1) is None
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        found = read_stat(zombie.pid)
        assert found is not None and found.state == "Z"
        assert PidfdProcess.open(zombie.pid) is None
    assert PidfdProcess.open(zombie.pid) is None and read_stat(zombie.pid) is None
    assert not opened_since(before)


async def test_a_confusing_process_name_is_parsed() -> None:
    program = "import ctypes; ctypes.CDLL(None).prctl(15, b') Z 1 (x'); print('named', flush=True); input()"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None and await child.stdout.readline() == b"named\n"
    stat = read_stat(child.pid)
    assert stat is not None and stat.parent == os.getpid() and stat.state != "Z"
    child.kill()
    await child.wait()


@pytest.mark.parametrize("shared", [None, Path("/run/shared")])
def test_fakedom_is_started_with_folders_groups_and_environment(shared: Path | None) -> None:
    launch = Launch(Path("/g/fakedom"), Path("/g/root"), Path("/d"), 1 << 28, (Path("/c/1"), Path("/c/2")),
                    {"B": "2", "A": "1"}, shared, 9)  # fmt: skip
    options = ["--shared", "/run/shared"] if shared else []
    inside = ["--env", "XENPOD_SHARED=fd:4"] if shared else []
    assert launch.command() == [
        *("/g/fakedom", "--root", "/g/root", "--dir", "/d", "--memory", str(1 << 28)),
        *("--cgroup", "/c/1", "--cgroup", "/c/2"),
        *options,
        *("--env", "A=1", "--env", "B=2", "--env", "XENPOD_CHANNEL=fd:3"),
        *inside,
    ]
