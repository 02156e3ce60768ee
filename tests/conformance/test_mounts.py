"""Mounts: the containers' view of the host's files and directories, and the host's view of the changes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from protect.host import mounts as host
from tests.support.cri.conformance import SuiteStage, refused
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.events import PATIENCE
from tests.support.waiting import until
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]
FOLLOW, BOTH = cri.PROPAGATION_HOST_TO_CONTAINER, cri.PROPAGATION_BIDIRECTIONAL


def mount(host_path: Path | str, container_path: str = "/v", **more: object) -> cri.Mount:
    return cri.Mount(host_path=str(host_path), container_path=container_path, **more)  # type: ignore[arg-type]


@contextmanager
def mounted(place: Path, size: str = "size=1m") -> Iterator[Path]:
    """A tmpfs of the host's, in a shared mount of its own."""
    place.mkdir(parents=True)
    host.tmpfs(place, size)
    host.propagate(place, host.MS_SHARED)
    try:
        yield place
    finally:
        while host.unmount(place):
            pass


async def stop(stage: SuiteStage, container: str) -> None:
    await stage.runtime.StopContainer(cri.StopContainerRequest(container_id=container), timeout=PATIENCE)


async def test_changes_in_a_mounted_directory_go_both_ways(
    stage: SuiteStage, shared_pod: Pod, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "a").write_text("of the host")
    (tmp_path / "link").symlink_to("folder")
    asked = [
        mount(folder / "inner", "/v/deep/inner"),
        mount(folder),
        mount(tmp_path / "link", "/linked", selinux_relabel=True),
        mount(tmp_path / "not/yet", "/made"),
    ]
    container = await stage.started(shared_pod, mounts=asked)
    assert await stage.output(container, "cat /v/a /linked/a") == "of the hostof the host"
    script = "echo back > /v/b; mkdir /v/new; mv /v/b /v/new/; echo in > /v/deep/inner/c; echo x > /made/d"
    await stage.output(container, script)
    assert (folder / "new/b").read_text() == "back\n" and (folder / "inner/c").read_text() == "in\n"
    assert (tmp_path / "not/yet/d").read_text() == "x\n"
    (folder / "a").write_text("changed")
    assert await stage.output(container, "cat /linked/a") == "changed"
    owned = "touch /v/own && chown 12:34 /v/own && chmod 2750 /v/own && stat -c '%u %g %a' /v/own"
    assert await stage.output(container, owned) == "12 34 2750"
    seen = (folder / "own").stat()
    assert (seen.st_uid, seen.st_gid, seen.st_mode & 0o7777) == (12, 34, 0o2750)
    assert list((await stage.status(container)).mounts) == asked


async def test_the_files_of_a_kubelet(stage: SuiteStage, shared_pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("10.1.2.3 kubelet-wrote-this\n")
    (tmp_path / "message").touch(mode=0o666)
    asked = [
        mount(tmp_path / "hosts", "/etc/hosts"),
        mount(tmp_path / "message", "/dev/termination-log"),
    ]
    script = "echo because > /dev/termination-log; exit 3"
    container = await stage.started(shared_pod, f"cat /etc/hosts; cat /etc/hostname; {script}", mounts=asked)
    assert (await stage.ended(container)).exit_code == 3
    assert (tmp_path / "message").read_text() == "because\n"
    lines = await stage.logged(container, shared_pod.config.hostname)
    assert lines[0] == "stdout F 10.1.2.3 kubelet-wrote-this"


async def test_update_of_a_secret_by_the_kubelet_is_seen_in_the_container(
    stage: SuiteStage, shared_pod: Pod, tmp_path: Path
) -> None:
    """Config maps, secrets and tokens: a tmpfs whose directory of contents is replaced by a rename."""

    def update(folder: Path, number: int) -> None:
        contents = folder / f"..{number}"
        contents.mkdir()
        (contents / "token").write_text(f"token {number}")
        (folder / "..new").symlink_to(contents.name)
        (folder / "..new").rename(folder / "..data")

    with mounted(tmp_path / "pods/1-2/volumes/kubernetes.io~secret/token") as folder:
        (folder / "token").symlink_to("..data/token")
        update(folder, 1)
        container = await stage.started(shared_pod, mounts=[mount(folder, readonly=True)])
        for number in (2, 3):
            update(folder, number)
            script = f"until grep -q {number} /v/token; do :; done; cat /v/token"
            assert await stage.output(container, script) == f"token {number}"
        (folder / "..2/token").unlink()
        (folder / "..2").rmdir()
        gone = "while test -e /v/..2; do :; done; ls -A /v"
        assert await stage.output(container, gone) == "..3\n..data\ntoken"


async def test_readonly_mount_refuses_writes_recursively_if_asked(
    stage: SuiteStage, shared_pod: Pod, tmp_path: Path
) -> None:
    with mounted(tmp_path / "folder/below") as below:
        (below / "a").write_text("a")
        asked = [
            mount(below.parent, readonly=True),
            mount(below.parent, "/w", readonly=True, recursive_read_only=True),
        ]
        container = await stage.started(shared_pod, mounts=asked)
        assert await stage.output(container, "cat /v/below/a /w/below/a") == "aa"
        for place in ("/v/b", "/w/b", "/w/below/b"):
            code, said = await stage.says(container, f"touch {place}")
            assert code != 0 and "Read-only" in said
        assert os.listdir(below) == ["a"] and os.listdir(below.parent) == ["below"]
        shown = (await stage.status(container)).mounts
        assert [each.recursive_read_only for each in shown] == [False, True]
    handlers = (await stage.runtime.Status(cri.StatusRequest())).runtime_handlers
    assert handlers and all(each.features.recursive_read_only_mounts for each in handlers)
    for wrong in (
        {"readonly": False},
        {"readonly": True, "propagation": FOLLOW},
        {"readonly": True, "propagation": BOTH},
    ):
        with refused("INVALID_ARGUMENT", "recursive_read_only"):
            await stage.create(shared_pod, mounts=[mount(tmp_path, recursive_read_only=True, **wrong)])


async def test_propagation_follows_the_host_and_bidirectional_is_refused(
    stage: SuiteStage, shared_pod: Pod, tmp_path: Path
) -> None:
    with mounted(tmp_path / "folder") as folder:
        asked = [mount(folder, propagation=FOLLOW), mount(folder, "/w")]
        container = await stage.started(shared_pod, mounts=asked)
        with mounted(folder / "later") as later:
            (later / "news").write_text("news")
            soon = "until test -e /v/later/news; do :; done; cat /v/later/news"
            assert await stage.output(container, soon) == "news"
            assert (await stage.says(container, "cat /w/later/news"))[0] != 0
        await stage.output(container, "while test -e /v/later/news; do :; done")
        assert [each.propagation for each in (await stage.status(container)).mounts] == [FOLLOW, 0]
        with refused("FAILED_PRECONDITION", "mountPropagation Bidirectional", "another runtime"):
            await stage.create(shared_pod, mounts=[mount(folder, propagation=BOTH)])


async def test_invalid_mounts_sockets_and_devices_are_refused(
    stage: SuiteStage, shared_pod: Pod, tmp_path: Path
) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(tmp_path / "s"))
        with refused("FAILED_PRECONDITION", "socket"):
            await stage.create(shared_pod, mounts=[mount(tmp_path / "s")])
    with refused("FAILED_PRECONDITION", "device"):
        await stage.create(shared_pod, mounts=[mount("/dev/null")])
    for wrong in (mount("/etc", "/proc/1"), mount("/etc", "/"), mount("etc"), mount("/etc", "v"), mount("")):
        with refused("INVALID_ARGUMENT"):
            await stage.create(shared_pod, mounts=[wrong])
    device = cri.Device(host_path="/dev/null", container_path="/dev/mine", permissions="rwm")
    with refused("INVALID_ARGUMENT", "/dev/null", "not a block device"):
        await stage.create(shared_pod, devices=[device])


async def test_fifty_mounts_each_show_their_file(stage: SuiteStage, shared_pod: Pod, tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}").write_text(f"{number} ")
    asked = [mount(tmp_path / f"{number}", f"/many/{number}") for number in range(50)]
    container = await stage.started(shared_pod, mounts=asked)
    said = await stage.output(container, "cat /many/? /many/??")
    assert said.split() == [str(number) for number in range(50)]


async def test_host_gets_shared_directories_back(stage: SuiteStage, shared_pod: Pod, tmp_path: Path) -> None:
    with mounted(tmp_path / "folder/below") as below:
        container = await stage.started(shared_pod, mounts=[mount(below.parent)])
        assert host.unmount(below)
        below.rmdir()
        await stop(stage, container)
        places = stage.node.protectd.run_dir / "volumes" / shared_pod.id / "places"
        await until(lambda: not (places / container).exists(), PATIENCE)


async def test_an_empty_dir_in_memory(stage: SuiteStage, tmp_path: Path) -> None:
    """The contents are in the zone: the kubelet's tmpfs stays empty."""
    kubelet = tmp_path / "pods/1-2"
    with mounted(kubelet / "volumes/kubernetes.io~empty-dir/cache", "size=2m") as volume:
        volume.chmod(0o2777)
        os.chown(volume, 0, 77)
        part = kubelet / "volume-subpaths/cache/web/0"
        part.mkdir(parents=True)
        (volume / "sub/dir").mkdir(parents=True)
        tree = host.clone(volume / "sub/dir", recursive=False)
        host.attach_tree(tree, part)
        os.close(tree)
        try:
            async with stage.pod("memory") as pod:
                one = await stage.started(pod, mounts=[mount(volume)])
                two = await stage.started(pod, mounts=[mount(volume, "/w", readonly=True), mount(part, "/p")])
                await stage.output(one, "echo shared > /v/a")
                assert await stage.output(two, "cat /w/a; stat -c '%a %g' /w") == "shared\n2777 77"
                assert (await stage.says(two, "touch /w/b"))[0] != 0
                await stage.output(two, "echo part > /p/b")
                assert await stage.output(one, "cat /v/sub/dir/b") == "part"
                code, said = await stage.says(one, "dd if=/dev/zero of=/v/big bs=64k count=64")
                assert code != 0 and "No space" in said
                await stop(stage, one)
                again = await stage.started(pod, mounts=[mount(volume)])
                said, size = (await stage.output(again, "cat /v/a; wc -c < /v/big")).split()
                assert said == "shared" and 1 << 20 < int(size) < 2 << 20
                assert os.listdir(volume) == ["sub"] and os.listdir(volume / "sub/dir") == []
        finally:
            host.unmount(part)
