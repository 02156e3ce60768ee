"""File volumes over protect.v1: copies that follow the host, shared paths, and returned files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from tests.support.cri.kubelet_files import AtomicFiles, PodFiles, pod_files
from tests.support.images import busybox
from tests.support.protect.crashes import armed, connected, killed, workloads
from tests.support.protect.zones import Zones, failing, needs_protectd
from tests.support.session.checkpoints import killed_at
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd, pytest.mark.asyncio(loop_scope="module")]
Code = grpc.StatusCode


@pytest_asyncio.fixture(loop_scope="module")
async def zones(shared_zones: Zones) -> Zones:
    zone = await shared_zones.create_zone()
    assert zone.file_volumes
    return shared_zones


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[PodFiles]:
    with pod_files(tmp_path / "kubelet") as made:
        yield made


@pytest.fixture
def files(pod: PodFiles) -> AtomicFiles:
    made = pod.files("configmap", "settings")
    made.write({"a": "one", "deep/b": "two"})
    return made


def volume(path: Path, name: str = "0", **more: Any) -> pb.FileVolume:
    """As xenpod-cri asks for a ConfigMap."""
    values: dict[str, Any] = {"volume": f"of-{path.name}", "keep_current": True}
    return pb.FileVolume(name=name, host_path=str(path), **(values | more))


async def create(
    zones: Zones,
    *volumes: pb.FileVolume,
    workload: str = "w1",
    script: str = "while :; do sleep 1000; done",
    way: str = "ro",
) -> None:
    """A workload that has each volume at /v<name>."""
    source = f"/run/xenpod/containers/{workload}/volumes"
    binds = [
        busybox.bind(f"{source}/{one.name}", f"/v{one.name}", "rbind", "rprivate", way) for one in volumes
    ]
    config = busybox.config(workload, ["/bin/sh", "-c", script], mounts=binds)
    await zones.create([], workload, oci_config=config, file_volumes=volumes)


async def started(zones: Zones, *volumes: pb.FileVolume, workload: str = "w1", way: str = "ro") -> None:
    await create(zones, *volumes, workload=workload, way=way)
    await zones.start(workload)


async def sh(zones: Zones, script: str, workload: str = "w1") -> str:
    stdout, stderr, _ = await zones.exec("/bin/sh", "-c", script, workload_id=workload)
    return (stdout + stderr).decode()


async def shows(zones: Zones, script: str, text: str, workload: str = "w1") -> None:
    """Wait until a script in the workload prints the text."""
    said = await sh(
        zones, f"until [ \"$({script} 2>/dev/null)\" = '{text}' ]; do :; done; {script}", workload
    )
    assert said.strip() == text


def shared(zones: Zones) -> list[str]:
    places = zones.protectd.run_dir / "volumes/z1/places"
    return sorted(str(path.relative_to(places)) for path in places.glob("*/*"))


async def test_the_host_is_followed(zones: Zones, files: AtomicFiles) -> None:
    await started(zones, volume(files.path))
    assert await sh(zones, "cat /v0/a /v0/deep/b; echo no > /v0/a") == (
        "onetwo/bin/sh: can't create /v0/a: Read-only file system\n"
    )
    assert shared(zones) == []
    files.write({"a": "three", "c": "new"})
    await shows(zones, "cat /v0/c /v0/a", "newthree")
    await shows(zones, "ls /v0", "a\nc")
    await started(zones, volume(files.path, "1"), workload="w2")
    assert await sh(zones, "cat /v1/a /v1/c", "w2") == "threenew"
    await zones.delete()
    files.write({"a": "four"})
    await shows(zones, "cat /v1/a", "four", "w2")


async def test_a_version_is_seen_as_a_whole(zones: Zones, files: AtomicFiles) -> None:
    """During changes, a reader of two files finds both of one version, through one open of ..data."""
    files.write({"a": "0", "b": "0"})
    await started(zones, volume(files.path))
    script = (
        'while [ "$last" != 40 ]; do cd -P /v0/..data || continue;'
        " a=$(cat a 2>/dev/null); b=$(cat b 2>/dev/null);"
        ' [ "$a" = "$b" ] || [ -z "$a" ] || [ -z "$b" ] || echo "mixed $a $b"; last=$a; done; echo end'
    )

    async def rewrite() -> None:
        for number in range(1, 41):
            files.write({"a": str(number), "b": str(number)})
            await sh(zones, "true")

    said, _ = await asyncio.gather(sh(zones, script), rewrite())
    assert said.splitlines()[-1] == "end" and "mixed" not in said


async def test_copied_files_keep_their_modes_and_owners(zones: Zones, pod: PodFiles) -> None:
    files = pod.files("secret", "token", memory=True, mode=0o440)
    os.chown(files.path, 0, 77)
    files.path.chmod(0o3777)
    files.write({"key": "secret"}, gid=77)
    await started(zones, volume(files.path))
    words = (await sh(zones, "ls -ln /v0/..data/; ls -ldn /v0")).split()
    assert words[2:6] == ["-r--r-----", "1", "0", "77"], words
    assert words[-9].startswith("drwxrwsrw") and words[-6] == "77", words
    assert shared(zones) == []


async def test_a_file_is_written_in_place_for_all(zones: Zones, pod: PodFiles) -> None:
    hosts = pod.etc_hosts("127.0.0.1 one\n")
    asked = volume(hosts, volume=".hosts", writable=True)
    await started(zones, asked, way="rw")
    await started(zones, asked, workload="w2", way="rw")
    await sh(zones, "echo 10.0.0.1 mine >> /v0")
    assert await sh(zones, "cat /v0", "w2") == "127.0.0.1 one\n10.0.0.1 mine\n"
    assert hosts.read_text() == "127.0.0.1 one\n" and shared(zones) == []
    pod.etc_hosts("127.0.0.1 two\n")
    await shows(zones, "cat /v0", "127.0.0.1 two")
    await shows(zones, "cat /v0", "127.0.0.1 two", "w2")


@pytest.mark.parametrize("script", ["exit 3", "sleep 1000"])
async def test_end_of_the_termination_log_is_on_the_host_before_the_workloads_end_is_told(
    zones: Zones, pod: PodFiles, script: str
) -> None:
    log = pod.termination_log()
    asked = volume(log, volume="", keep_current=False, writable=True, return_bytes=4096)
    write = f"i=0; while [ $i -lt 100 ]; do echo $i {'x' * 50} >> /v0; i=$((i+1)); done"
    await create(zones, asked, script=f"{write}; echo ready; {script}", way="rw")
    await zones.start()
    if script != "exit 3":
        await until(lambda: zones.log().exists() and "ready" in zones.log().read_text())
        assert log.read_bytes() == b""
        await zones.signal(9)
    await zones.wait()
    text = log.read_bytes()
    assert len(text) == 4096 and text.endswith(b"99 " + b"x" * 50 + b"\n")
    assert shared(zones) == []


async def test_returned_file_is_not_written_through_a_symbolic_link(
    zones: Zones, pod: PodFiles, tmp_path: Path
) -> None:
    log = pod.termination_log()
    asked = volume(log, volume="", keep_current=False, writable=True, return_bytes=4096)
    await create(zones, asked, script="echo left > /v0", way="rw")
    other = tmp_path / "other"
    other.write_text("kept")
    log.rename(tmp_path / "moved")
    log.symlink_to(other)
    await zones.start()
    await zones.wait()
    assert other.read_text() == "kept" and (tmp_path / "moved").read_text() == ""


async def test_a_file_with_a_link_or_another_name_is_not_written_back(
    zones: Zones, pod: PodFiles, tmp_path: Path
) -> None:
    """Such paths are shared; the directory ``beneath`` may have links in its own path."""
    victim, log, named = tmp_path / "victim", pod.termination_log(), pod.termination_log()
    victim.write_text("kept")
    (tmp_path / "away").symlink_to(pod.path.parents[1])
    (pod.path / "containers/link").symlink_to(log.parent)
    (log.parent / "00000abc").symlink_to(victim)
    os.link(victim, named.parent / "00000def")
    back: dict[str, Any] = {"volume": "", "keep_current": False, "writable": True, "return_bytes": 4096}
    beneath = tmp_path / "away"
    own = beneath / log.relative_to(pod.path.parents[1])
    linked = [
        pod.path / "containers/link" / log.name,
        log.parent / "00000abc",
        named.parent / "00000def",
        own,
    ]
    volumes = [volume(path, str(at), **back) for at, path in enumerate(linked)]
    last = volume(own, "9", beneath=str(beneath), **back)
    await create(zones, *volumes, last, script="echo left > /v9", way="rw")
    assert shared(zones) == [f"w1/{at}" for at in range(len(linked))]
    await zones.start()
    await zones.wait()
    assert (log.read_text(), victim.read_text()) == ("left\n", "kept")


async def test_file_with_a_second_name_is_not_written_back(
    zones: Zones, pod: PodFiles, tmp_path: Path
) -> None:
    log = pod.termination_log()
    asked = volume(log, volume="", keep_current=False, writable=True, return_bytes=4096)
    await create(zones, asked, script="echo left > /v0", way="rw")
    os.link(log, tmp_path / "other")
    await zones.start()
    await zones.wait()
    assert log.read_text() == ""


async def test_sub_path_and_plain_directory_are_copied_once_and_not_renewed(
    zones: Zones, files: AtomicFiles, pod: PodFiles, tmp_path: Path
) -> None:
    """A part of a volume stays unchanged, as in a kubelet's mount of the part."""
    one = pod.sub_path(files.path, "a")
    below = tmp_path / "plain"
    (below / "x").mkdir(parents=True)
    (below / "x/file").write_text("text")
    (below / "link").symlink_to("x/file")
    own: dict[str, Any] = {"volume": "", "keep_current": False}
    await started(zones, volume(one, **own), volume(below, "1", **own))
    files.write({"a": "later"})
    assert await sh(zones, "cat /v0 /v1/link") == "onetext" and shared(zones) == []
    await zones.delete()
    zone = (await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"))).domain_id
    assert os.listdir(f"/proc/{zone}/root/run/xenpod/files") == []


async def test_uncopyable_volumes_are_shared(
    zones: Zones, files: AtomicFiles, pod: PodFiles, tmp_path: Path
) -> None:
    """With a bind from the same place: the caller need not know."""
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "plain").write_text("plain\n")
    strange = pod.files("configmap", "strange")
    strange.write({"a": "x"})
    (strange.path / "a").unlink()
    (strange.path / "a").symlink_to("/etc/passwd")
    large = pod.files("configmap", "large")
    large.write({f"f{number}": "y" * (1 << 20) for number in range(5)})
    many = pod.files("configmap", "many")
    many.write({f"f{number}": "" for number in range(600)})
    piped = pod.files("configmap", "piped")
    piped.write({"a": "x"})
    os.mkfifo(piped.path / "..data" / "pipe")
    names = [odd, strange.path, large.path, many.path, piped.path, tmp_path / "missing"]
    await started(zones, *(volume(path, str(at)) for at, path in enumerate(names)), volume(files.path, "9"))
    assert shared(zones) == [f"w1/{at}" for at in range(6)]
    assert await sh(zones, "cat /v0/plain /v9/a") == "plain\none"
    assert len((await sh(zones, "ls /v3")).split()) == 600
    assert " 1048576 " in await sh(zones, "ls -lL /v2/f4")
    (odd / "plain").write_text("later\n")
    assert (await sh(zones, "cat /v0/plain; echo no > /v0/plain")).startswith("later\n/bin/sh: can't create")
    other = pod.files("projected", "settings")
    other.write({"a": "another"})
    await started(zones, volume(other.path), workload="w2")
    assert await sh(zones, "cat /v0/a", "w2") == "another" and "w2/0" in shared(zones)


async def test_invalid_file_volume_is_refused(zones: Zones, files: AtomicFiles) -> None:
    wrong = [
        [volume(files.path), volume(files.path)],
        [volume(files.path, "A")],
        [volume(files.path, volume="a/b")],
        [volume(Path("relative"))],
        [volume(files.path, return_bytes=1)],
        [volume(files.path, volume="", return_bytes=4097, writable=True)],
        [volume(files.path, volume="", return_bytes=1)],
        [volume(files.path, volume="", beneath="/")],
        [volume(files.path, volume="", return_bytes=1, writable=True, beneath="/etc")],
        [volume(files.path, volume="", return_bytes=1, writable=True, beneath="../x")],
        [volume(files.path, str(number)) for number in range(257)],
    ]
    for volumes in wrong:
        async with failing(Code.INVALID_ARGUMENT):
            await create(zones, *volumes)


async def test_vanished_volume_is_followed_after_its_return(
    zones: Zones, files: AtomicFiles, pod: PodFiles
) -> None:
    await started(zones, volume(files.path))
    files.path.rename(files.path.with_name("away"))
    again = AtomicFiles(files.path)
    files.path.mkdir()
    again.write({"a": "again"})
    AtomicFiles(files.path.with_name("away")).write({"a": "told"})
    await shows(zones, "cat /v0/a", "again")
    again.write({"a": "more"})
    await shows(zones, "cat /v0/a", "more")


@killed_at(["workload-create.files-put", "files.part-put:1", "files.part-put:2"])
async def test_a_kill_while_they_are_put(zones: Zones, pod: PodFiles, step: str) -> None:
    files = pod.files("configmap", "settings")
    files.write({"a": "x" * 400_000})
    await armed(zones, step)
    await killed(zones, create(zones, volume(files.path)))
    await connected(zones)
    if "w1" not in await workloads(zones):
        await zones.delete()
        await create(zones, volume(files.path))
    await zones.start()
    assert " 400000 " in await sh(zones, "ls -lL /v0/a")
    files.write({"a": "news"})
    await shows(zones, "cat /v0/a", "news")


async def test_changes_while_protectd_is_away(zones: Zones, files: AtomicFiles, pod: PodFiles) -> None:
    log = pod.termination_log()
    left = volume(log, "1", volume="", keep_current=False, writable=True, return_bytes=4096)
    await create(zones, volume(files.path), left, script="echo mine > /v1; sleep 1000", way="rw")
    await zones.start()
    await zones.protectd.daemon.crash()
    files.write({"a": "meanwhile"})
    await zones.protectd.daemon.start()
    await connected(zones)
    await shows(zones, "cat /v0/a", "meanwhile")
    files.write({"a": "after"})
    await shows(zones, "cat /v0/a", "after")
    await zones.signal(9)
    await zones.wait()
    assert log.read_text() == "mine\n"


async def test_a_kill_while_they_are_renewed(zones: Zones, files: AtomicFiles) -> None:
    await started(zones, volume(files.path))
    for number, step in enumerate(("files.part-put", "files.renewed")):
        await armed(zones, step)

        async def change(text: str = f"new {number}") -> None:
            files.write({"a": text})

        await killed(zones, change())
        await connected(zones)
        await shows(zones, "cat /v0/a", f"new {number}")
