"""File servers of zones on Xen: found again, missed after a kill, ended with their domain."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from protect.model.toolstack import DiskSpec, ShareEnd
from protect.toolstack.libxl.capacity import rings
from protect.volumes.area import Area
from tests.contract.conftest import images, stage
from tests.support.images import busybox
from tests.support.protect.stage import PATIENCE, Agent, Stage, soon
from tests.support.share.volumes import area, shown, source
from tests.support.waiting import until
from tests.xen.inside.conftest import grants
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root
__all__ = ["area", "images", "shown", "source", "stage"]

MOST_GRANTS = 200
MOST_KIB = 3072


@pytest.fixture
async def agent(stage: Stage, area: Area, images: tuple[Path, Path], shown: Path) -> AsyncIterator[Agent]:
    """The agent of a domain with its directory mounted."""
    booted = await stage.boot(shared=area.namespace)
    await stage.toolstack.attach_disk(booted.domain, DiskSpec("xvda", images[0]))
    await mount(stage, booted)
    yield booted


async def mount(stage: Stage, agent: Agent) -> str:
    session = await stage.toolstack.share(agent.domain)
    await agent.call(mount_shared=pb.MountShared(session=session))
    return session


async def uuid_of(stage: Stage, agent: Agent) -> UUID:
    return next(info.uuid for info in await stage.toolstack.list() if info.id == agent.domain)


async def server_of(stage: Stage, agent: Agent) -> int:
    place = stage.folder.parent / "libxl/shares" / str(await uuid_of(stage, agent)) / "pid"
    return int(place.read_text().split()[0])


VOLUME = [busybox.bind("/run/xenpod/shared/w/0", "/v", "rbind", "rprivate", "rw")]
LOOP = "touch /v/began; while [ ! -e /v/stop ]; do cat /v/marker >/dev/null || exit 7; done; exit 0"


async def test_a_killed_server_is_missed_by_all(stage: Stage, agent: Agent, source: Path) -> None:
    """The reader has an error instead of waiting for ever, the port tells, and the next session works."""
    session = await stage.toolstack.share(agent.domain)
    ends = stage.toolstack.share_ends()
    running = asyncio.ensure_future(agent.run("reader", "xvda", "sh", "-c", LOOP, mounts=VOLUME))
    await until((source / "began").exists, PATIENCE)
    os.kill(await server_of(stage, agent), signal.SIGKILL)
    await soon(running)
    code, _ = running.result()
    assert code != 0
    end = await soon(anext(ends))
    assert isinstance(end, ShareEnd)
    assert (end.uuid, end.session, end.reason) == (await uuid_of(stage, agent), session, "it was killed")
    assert await mount(stage, agent) != session
    assert await agent.run("again", "xvda", "cat", "/v/marker", mounts=VOLUME) == (0, b"of the host\n")


async def test_a_session_outlives_the_daemon(stage: Stage, agent: Agent, source: Path) -> None:
    await agent.begin("reader", "xvda", "sh", "-c", LOOP, mounts=VOLUME)
    await until((source / "began").exists, PATIENCE)
    pid = await server_of(stage, agent)
    await stage.restart()
    again = await stage.connect(agent.domain)
    assert await server_of(stage, again) == pid
    (source / "stop").touch()
    listed = pb.Reply()
    while not any(each.state == pb.PROCESS_STATE_EXITED for each in listed.processes.processes):
        listed = await again.call(list_processes=pb.ListProcesses())
    assert listed.processes.processes[0].exited.exit_code == 0
    (source / "stop").unlink()
    assert await again.run("after", "xvda", "cat", "/v/marker", mounts=VOLUME) == (0, b"of the host\n")


async def test_a_server_ends_with_its_domain(stage: Stage, agent: Agent) -> None:
    pid = await server_of(stage, agent)
    uuid = await uuid_of(stage, agent)
    await stage.toolstack.destroy(agent.domain)
    assert not Path(f"/proc/{pid}").exists()
    assert not (stage.folder.parent / "libxl/shares" / str(uuid)).exists()
    listed = subprocess.run(["xl", "list"], capture_output=True, text=True, check=True).stdout
    assert f" {agent.domain} " not in listed, "nobody has its pages"


async def test_a_gone_guest_ends_its_server(stage: Stage, agent: Agent) -> None:
    """A guest leaves when told of another session; a hostile guest leaves at any time."""
    ends = stage.toolstack.share_ends()
    leaving = asyncio.ensure_future(agent.call(mount_shared=pb.MountShared(session="another")))
    end = await soon(anext(ends))
    leaving.cancel()
    assert isinstance(end, ShareEnd) and end.reason == "the zone closed the connection"


async def test_shared_directory_costs_bounded_grants_and_memory(
    stage: Stage, agent: Agent, images: tuple[Path, Path]
) -> None:
    bare = await stage.boot()
    await stage.toolstack.attach_disk(bare.domain, DiskSpec("xvda", images[0]))
    assert (await bare.run("c", "xvda", "true"))[0] == 0
    assert (await agent.run("c", "xvda", "cat", "/v/marker", mounts=VOLUME))[0] == 0
    without, with_share = grants(bare.domain), grants(agent.domain)
    status = Path(f"/proc/{await server_of(stage, agent)}/status").read_text()
    kib = int(status.split("VmRSS:")[1].split()[0])
    assert without <= MOST_GRANTS and with_share <= MOST_GRANTS + rings.pages(rings.SHARING_ORDER)
    assert kib <= MOST_KIB
