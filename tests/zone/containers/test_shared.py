"""The directory of volumes: the agent's work for XENPOD_SHARED."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protect.host import mounts
from protect.volumes.area import Area
from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import DEADLINE, Failed
from tests.support.waiting import block_until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "zone"
    made.mkdir()
    return made


def test_a_passed_mount_is_used(
    directory: Path, root: Path, cgroups: list[Path], area: Area, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/marker").touch()
    zone = Zone(directory, root, cgroups, shared=area.namespace, XENPOD_SHARED="fd:4")
    try:
        zone.unpause()
        client = zone.connect()
        assert client.call(mount_shared=pb.MountShared(session="mount")).HasField("done"), (
            "it is there already"
        )
        client.close()
        there = Path(f"/proc/{zone.pid}/root/run/xenpod/shared")
        assert os.listdir(there) == []
        tree = mounts.clone(tmp_path / "source", recursive=False)
        mounts.change(tree, propagation=mounts.MS_PRIVATE, recursive=False)
        area.attach("w", "0", tree, directory=True)
        os.close(tree)
        assert os.listdir(there / "w/0") == ["marker"]
        with pytest.raises(OSError, match="Read-only"):
            (there / "w/new").touch()
        area.detach("w")
        assert os.listdir(there) == []
        links = [os.readlink(f"/proc/{zone.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{zone.pid}/fd")]
        assert not [link for link in links if link == "/"], "the descriptor is closed"
    finally:
        zone.destroy()


def test_zone_without_a_shared_directory_refuses_the_mount(zone: Zone) -> None:
    assert not Path(f"/proc/{zone.pid}/root/run/xenpod/shared").exists()
    client = zone.connect()
    with pytest.raises(Failed, match="shares no directory") as refused:
        client.call(mount_shared=pb.MountShared(session="s1"))
    assert refused.value.code == 9
    client.close()


@pytest.mark.parametrize("session", ["", "a/b", "..", "x" * 33])
def test_a_session_is_a_plain_word(zone: Zone, session: str) -> None:
    client = zone.connect()
    with pytest.raises(Failed) as refused:
        client.call(mount_shared=pb.MountShared(session=session))
    assert refused.value.code == 3
    client.close()


def test_an_unreachable_server_fails_the_mount(directory: Path, root: Path, cgroups: list[Path]) -> None:
    """No Xen on this host. The call fails for all waiting callers, and the zone continues."""
    zone = Zone(directory, root, cgroups, XENPOD_SHARED="vchan")
    try:
        zone.unpause()
        client = zone.connect()
        calls = [client.begin(mount_shared=pb.MountShared(session="s1")) for _ in range(3)]
        for call in calls:
            with pytest.raises(Failed, match="vchan"):
                client.finish(call)
        with pytest.raises(Failed, match="vchan"):
            client.call(mount_shared=pb.MountShared(session="s2"))
        assert os.listdir(f"/proc/{zone.pid}/root/run/xenpod/shared") == []
        assert client.call(get_facts=pb.GetFacts()).facts.pid1
        client.close()
    finally:
        zone.destroy()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nonsense", "neither vchan nor fd:<number>"),
        ("fd:x", "neither vchan nor fd:<number>"),
        ("9p:xenpod", "neither vchan nor fd:<number>"),
        ("fd:77", "move_mount"),
    ],
)
def test_unusable_shared_directory_ends_the_zone(
    directory: Path, root: Path, cgroups: list[Path], how: str, said: str
) -> None:
    """A zone without its volumes is of no use: the start fails with the reason."""
    zone = Zone(directory, root, cgroups, XENPOD_SHARED=how)
    zone.unpause()
    try:
        assert zone.wait_status() == "crash"
        block_until(lambda: said in zone.console(), DEADLINE, zone.console)
    finally:
        zone.destroy()
