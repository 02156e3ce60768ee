"""The toolstack's file servers of domains: a script stands for hostc/fileserver."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from daemonkit.faults import Broken, Exists, Missing, Refused
from protect.toolstack.libxl.capacity.rings import SHARING_ORDER
from protect.toolstack.libxl.sharing import Sharing
from tests.support.protect.stage import PATIENCE
from tests.support.waiting import until

MIB = 1 << 20
LAUNCHER = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in --dir) dir=$2;; --session) session=$2;; --namespace) namespace=$2;; esac
    case $1 in --ring-order) order=$2;; esac
    shift
done
[ -e "$namespace" ] || { echo "share: no $namespace" >&2; exit 1; }
echo "$order" > "$dir/order"
sleep 1000 > "$dir/log" 2>&1 &
set -- $! $(sed 's/.*) //' /proc/$!/stat)
echo "$1 ${21} $session" > "$dir/pid"
"""
"""Of /proc/<pid>/stat the 22nd field, with two left out and one put before."""


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    script = tmp_path / "share"
    script.write_text(LAUNCHER)
    script.chmod(0o755)
    return script


@pytest.fixture
def namespace(tmp_path: Path) -> Path:
    place = tmp_path / "namespace"
    place.touch()
    return place


@pytest.fixture
async def sharing(tmp_path: Path, launcher: Path) -> AsyncIterator[Sharing]:
    made = Sharing(launcher, tmp_path / "shares", 64 * MIB)
    await made.adopt(())
    await made.adopt(())
    yield made
    for name in os.listdir(made.folder):
        await made.forget(UUID(name))
    await made.close()


def pid_of(sharing: Sharing, uuid: UUID) -> int:
    return int((sharing.folder / str(uuid) / "pid").read_text().split()[0])


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def test_file_server_is_started_once_and_ends_with_its_domain(
    sharing: Sharing, namespace: Path
) -> None:
    uuid = uuid4()
    with pytest.raises(Refused, match="without a directory"):
        await sharing.serve(uuid, 7)
    sharing.enter(uuid, "d", namespace)
    session = await sharing.serve(uuid, 7)
    with pytest.raises(Exists):
        sharing.enter(uuid, "d", namespace)
    assert await sharing.serve(uuid, 7) == session
    assert int((sharing.folder / str(uuid) / "order").read_text()) == SHARING_ORDER
    pid = pid_of(sharing, uuid)
    assert runs(pid)
    ends = sharing.listen()
    await sharing.forget(uuid)
    await sharing.forget(uuid)
    assert not runs(pid) and os.listdir(sharing.folder) == []
    await sharing.close()
    assert [end async for end in ends] == [], "that was no news"


async def test_end_of_a_file_server_is_told_and_the_next_has_a_new_session(
    sharing: Sharing, namespace: Path
) -> None:
    uuid = uuid4()
    sharing.enter(uuid, "d", namespace)
    session = await sharing.serve(uuid, 7)
    ends = sharing.listen()
    (sharing.folder / str(uuid) / "log").write_text("share: one\nshare: the zone \x1b closed it\n")
    os.kill(pid_of(sharing, uuid), signal.SIGKILL)
    end = await asyncio.wait_for(anext(ends), 60)
    assert (end.uuid, end.session, end.reason) == (uuid, session, "the zone \ufffd closed it")
    assert (await anext(sharing.listen())) == end, "nothing has taken its place"
    assert await sharing.serve(uuid, 7) != session
    nothing = sharing.listen()
    await sharing.close()
    assert [end async for end in nothing] == []


async def test_another_daemon_finds_the_file_servers(
    sharing: Sharing, launcher: Path, namespace: Path
) -> None:
    alive, dead, gone = uuid4(), uuid4(), uuid4()
    sessions = {}
    for uuid in (alive, dead, gone):
        sharing.enter(uuid, "d", namespace)
        sessions[uuid] = await sharing.serve(uuid, 7)
    pids = {uuid: pid_of(sharing, uuid) for uuid in sessions}
    await sharing.close()
    os.kill(pids[dead], signal.SIGKILL)
    bare = uuid4()
    sharing.enter(bare, "d", namespace)
    (sharing.folder / str(alive) / "log").write_text("")
    await until(lambda: not runs(pids[dead]), PATIENCE)
    later = Sharing(launcher, sharing.folder, 64 * MIB)
    await later.adopt({alive, dead, bare})
    assert not runs(pids[gone]) and not (sharing.folder / str(gone)).exists()
    assert await later.serve(alive, 7) == sessions[alive] and runs(pids[alive])
    assert (await anext(later.listen())).uuid == dead
    ends = later.listen()
    assert (await anext(ends)).reason == "it was killed"
    os.kill(pids[alive], signal.SIGKILL)
    assert (await asyncio.wait_for(anext(ends), 60)).uuid == alive
    await later.forget(dead)
    await later.close()


async def test_failed_start_of_a_file_server_has_its_reason(sharing: Sharing, namespace: Path) -> None:
    uuid = uuid4()
    sharing.enter(uuid, "d", namespace)
    namespace.unlink()
    with pytest.raises(Broken, match="no .*namespace"):
        await sharing.serve(uuid, 7)


def test_missing_launcher_or_namespace_is_refused(sharing: Sharing, launcher: Path, namespace: Path) -> None:
    sharing.enter(uuid4(), "d", namespace)
    launcher.unlink()
    with pytest.raises(Missing, match="make zone"):
        sharing.enter(uuid4(), "d", namespace)
    namespace.unlink()
    with pytest.raises(Missing, match="no mount namespace"):
        sharing.enter(uuid4(), "d", namespace)
