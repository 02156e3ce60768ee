"""The shared directory (DomainSpec.shared), on each toolstack of this host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daemonkit.faults import Missing, Refused
from protect.host import mounts, mountspace
from protect.model.errors import DomainGone
from protect.model.toolstack import DiskSpec
from protect.volumes.area import Area
from tests.support.images import busybox
from tests.support.protect.stage import Agent, Stage
from tests.support.share.volumes import area, show, source
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root
__all__ = ["area", "source"]


def read(area: Area, path: str) -> bytes:
    """Read a file as the server of the directory does."""
    return mountspace.inside(area.namespace, lambda: Path("/", path).read_bytes())


class Guest:
    """A running domain with a shared directory, and a disk to run programs from."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._runs = 0

    async def sh(self, script: str, place: str = "w/0", way: str = "rw") -> tuple[int, str]:
        """Run a script in a container with the shared directory at /v."""
        self._runs += 1
        volume = busybox.bind(f"/run/xenpod/shared/{place}", "/v", "rbind", "rprivate", way)
        code, output = await self._agent.run(
            f"c{self._runs}", "xvda", "sh", "-c", f"exec 2>&1; {script}", mounts=[volume]
        )
        return code, output.decode()


async def mount(stage: Stage, agent: Agent) -> str:
    """Serve and mount the directory, as protectd does for a container with volumes.  Returns the session."""
    session = await stage.toolstack.share(agent.domain)
    await agent.call(mount_shared=pb.MountShared(session=session))
    return session


async def boot(stage: Stage, area: Area, images: tuple[Path, Path]) -> Guest:
    agent = await stage.boot(shared=area.namespace)
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvda", images[0]))
    await mount(stage, agent)
    return Guest(agent)


async def test_volume_is_seen_while_shown_and_gone_once_detached(
    stage: Stage, images: tuple[Path, Path], area: Area, source: Path
) -> None:
    guest = await boot(stage, area, images)
    show(area, source, "0")
    assert await guest.sh("cat /v/marker && echo from the guest > /v/answer") == (0, "of the host\n")
    assert (source / "answer").read_text() == "from the guest\n"
    (source / "later").write_text("1")
    assert await guest.sh("cat /v/later") == (0, "1")
    (source / "later").write_text("22")
    (source / "answer").unlink()
    assert await guest.sh("cat /v/later; ls /v") == (0, "22later\nmarker\n")
    area.detach("w")
    code, _ = await guest.sh("ls /v", ".")
    assert code == 0
    assert "w" not in (await guest.sh("ls /v", "."))[1].split()


async def test_a_file_of_the_host_can_be_a_volume(
    stage: Stage, images: tuple[Path, Path], area: Area, source: Path
) -> None:
    guest = await boot(stage, area, images)
    show(area, source / "marker", "0")
    assert await guest.sh("cat /v && echo changed > /v") == (0, "of the host\n")
    assert (source / "marker").read_text() == "changed\n"


async def test_shared_directory_and_read_only_volumes_cannot_be_written(
    stage: Stage, images: tuple[Path, Path], area: Area, source: Path
) -> None:
    guest = await boot(stage, area, images)
    show(area, source, "0", add=mounts.MOUNT_ATTR_RDONLY)
    # If the guest's kernel is the host's, the guest's root can remove the host's options; a runtime does not.
    way = "rw" if (await stage.toolstack.physical_info()).security_boundary else "ro"
    for script in ("echo no > /v/marker", "rm /v/marker", "mkdir /v/new", "chmod 777 /v"):
        code, said = await guest.sh(script, way=way)
        assert code != 0 and "ead-only" in said, (script, said)
    code, _ = await guest.sh("mkdir /v/x || mkdir /v/w/x || rm -r /v/w", ".", way)
    assert code != 0 and os.listdir(area.places) == ["w"] and os.listdir(area.places / "w") == ["0"]
    assert os.listdir(source) == ["marker"] and (source / "marker").read_text() == "of the host\n"


async def test_mounts_below_a_following_volume_are_seen(
    stage: Stage, images: tuple[Path, Path], area: Area, source: Path, tmp_path: Path
) -> None:
    guest = await boot(stage, area, images)
    tree = mounts.clone(source, recursive=False)
    mounts.change(tree, propagation=mounts.MS_SHARED, recursive=False)
    mounts.attach_tree(tree, source)
    os.close(tree)
    try:
        show(area, source, "0", propagation=mounts.MS_SLAVE)
        show(area, source, "1", propagation=mounts.MS_PRIVATE)
        later = source / "later"
        later.mkdir()
        mounts.tmpfs(later, "size=64k")
        (later / "news").write_text("mounted\n")
        assert await guest.sh("cat /v/later/news") == (0, "mounted\n")
        assert (await guest.sh("cat /v/later/news", "w/1"))[0] != 0
        mounts.unmount(later)
        assert (await guest.sh("cat /v/later/news"))[0] != 0
    finally:
        while mounts.unmount(source):
            pass


async def test_shared_directory_outlives_the_domain_and_the_toolstack(
    stage: Stage, images: tuple[Path, Path], area: Area, source: Path
) -> None:
    first = await stage.boot(shared=area.namespace)
    show(area, source, "0")
    await mount(stage, first)
    await stage.toolstack.destroy(first.domain)
    assert read(area, "w/0/marker") == b"of the host\n"
    agent = await stage.boot(shared=area.namespace)
    session = await mount(stage, agent)
    await stage.restart()
    agent = await stage.connect(agent.domain)
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvda", images[0]))
    guest = Guest(agent)
    assert await mount(stage, agent) == session, "the server is the same"
    assert await guest.sh("cat /v/marker") == (0, "of the host\n"), "mounted before the domain's start"
    show(area, source, "1")
    assert await guest.sh("cat /v/marker", "w/1") == (0, "of the host\n"), "mounted after the restart"


async def test_a_missing_directory_is_an_error(stage: Stage, tmp_path: Path) -> None:
    wanted = stage.spec(shared=tmp_path / "nothing")
    with pytest.raises(Missing):
        await stage.toolstack.create(wanted)
    assert await stage.info(wanted.uuid) is None


async def test_shared_directory_is_served_once_and_only_to_domains_with_a_share(
    stage: Stage, area: Area
) -> None:
    agent = await stage.boot(shared=area.namespace)
    first = await mount(stage, agent)
    assert await mount(stage, agent) == first
    bare = await stage.boot()
    with pytest.raises(Refused):
        await stage.toolstack.share(bare.domain)
    await stage.toolstack.destroy(agent.domain)
    with pytest.raises(DomainGone):
        await stage.toolstack.share(agent.domain)


async def test_domain_without_a_share_has_no_shared_directory(
    stage: Stage, images: tuple[Path, Path]
) -> None:
    agent = await stage.boot()
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvda", images[0]))
    volume = busybox.bind("/run/xenpod", "/v", "rbind")
    code, said = await agent.run("c", "xvda", "sh", "-c", "ls /v", mounts=[volume])
    assert code == 0 and "shared" not in said.decode().split()
