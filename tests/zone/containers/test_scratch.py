"""The scratch disk: writable layers and volumes are on the disk, within limits, and their space is freed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent.zone import Zone, writable_loop
from tests.support.agent.zone_client import DEADLINE, Client, Failed
from tests.support.agent.zone_specs import creation
from tests.support.waiting import block_until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

INVALID, EXHAUSTED, REFUSED = 3, 8, 9
MIB = 1 << 20
SIZE = 256 * MIB


@pytest.fixture
def file(tmp_path: Path, zone: Zone) -> Iterator[Path]:
    """The file behind the zone's disk xvdzy; the zone does not know the disk yet."""
    path = tmp_path / "scratch.img"
    with writable_loop(path, SIZE) as device:
        zone.attach("xvdzy", device)
        yield path


@pytest.fixture
def scratch(client: Client, file: Path) -> Path:
    """The same, in use."""
    client.call(mount_scratch=pb.MountScratch(disk="xvdzy"))
    return file


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def tree(zone: Zone, path: str) -> Path:
    return Path(f"/proc/{zone.pid}/root/run/xenpod/scratch") / path


def with_volume(container: str, script: str, **volume: object) -> pb.CreateContainer:
    source = f"/run/xenpod/containers/{container}/volumes/0"
    mount = {"destination": "/v", "type": "bind", "source": source, "options": ["rbind", "rw"]}
    request = creation(container, "sh", "-c", script, mounts=[mount])
    values: dict[str, object] = {"name": "0", "volume": "cache", "mode": 0o1777, "on_disk": True}
    request.memory_volumes.add(**(values | volume))
    return request


def said(client: Client, request: pb.CreateContainer, *, delete: bool = True) -> str:
    created = client.call(create_container=request).created
    client.call(start_container=pb.StartContainer(id=request.id))
    client.exited(request.id)
    text = (client.output(created.stderr_stream) + client.output(created.stdout_stream)).decode()
    if delete:
        client.delete(request.id)
    return text


def test_written_bytes_are_on_the_disk_until_the_container_is_deleted(
    zone: Zone, client: Client, scratch: Path
) -> None:
    before = allocated(scratch)
    script = "mkdir -p /a/b && dd if=/dev/urandom of=/a/b/c bs=1M count=40 conv=fsync && echo done"
    assert said(client, creation("c1", "sh", "-c", script), delete=False).endswith("done\n")
    assert allocated(scratch) - before >= 40 * MIB
    client.delete("c1")
    block_until(lambda: not os.listdir(tree(zone, "trash")), DEADLINE, "the trash stays")
    assert os.listdir(tree(zone, "layer")) == []
    subprocess.run(["sync", "-f", tree(zone, "")], check=True)
    block_until(lambda: allocated(scratch) - before < 4 * MIB, DEADLINE, "the host does not get it back")


def test_the_disk_is_the_hard_size(client: Client, scratch: Path) -> None:
    script = "dd if=/dev/zero of=/big bs=1M count=400; rm /big; echo more > /file && cat /file"
    text = said(client, creation("c1", "sh", "-c", script))
    assert "No space left" in text and text.endswith("more\n"), text
    assert scratch.stat().st_size == SIZE and allocated(scratch) <= SIZE


@pytest.mark.parametrize("limit", [1 * MIB, 32 * MIB])
def test_a_layer_with_a_limit_is_full_at_its_limit(client: Client, scratch: Path, limit: int) -> None:
    script = "dd if=/dev/zero of=/big bs=65536; wc -c < /big; rm /big; echo again > /f; cat /f"
    request = creation("c1", "sh", "-c", script)
    request.writable_bytes = limit
    text = said(client, request, delete=False)
    assert "No space left" in text and text.endswith("again\n"), text
    size = next(int(line) for line in text.splitlines() if line.isdigit())
    assert 0.93 * limit <= size <= limit
    stats = client.call(get_stats=pb.GetStats(container_ids=["c1"])).stats.containers[0]
    assert 0 < stats.writable_layer_bytes < 64 * 1024
    assert limit <= stats.writable_layer_limit_bytes <= 1.1 * limit
    client.delete("c1")
    unlimited = creation("c2", "sh", "-c", "dd if=/dev/zero of=/big bs=1M count=60")
    assert "No space" not in said(client, unlimited)


def test_a_volume_with_a_limit_is_shared_by_all_containers(zone: Zone, client: Client, scratch: Path) -> None:
    fill = with_volume("c1", "dd if=/dev/zero of=/v/a bs=65536; wc -c < /v/a", size_bytes=8 * MIB)
    text = said(client, fill)
    assert "No space left" in text
    assert 7.8 * MIB <= int(text.splitlines()[-1]) <= 8 * MIB
    asked = with_volume("c2", "ls -ld /v; ls /v; echo x > /x && echo elsewhere", size_bytes=8 * MIB)
    assert said(client, asked).split()[0] == "drwxrwxrwt"
    assert said(client, asked).endswith("a\nelsewhere\n")


def test_a_volume_without_a_limit_is_shared(zone: Zone, client: Client, scratch: Path) -> None:
    script = "dd if=/dev/zero of=/v/a bs=1M count=100 && ls -lnd /v"
    text = said(client, with_volume("c1", script, uid=7, gid=8, mode=0o2770))
    assert "drwxrws---" in text and " 7 " in text and " 8 " in text
    assert os.listdir(tree(zone, "volume/cache")) == ["a"]
    assert said(client, with_volume("c2", "wc -c < /v/a")) == f"{100 * MIB}\n"
    deep = with_volume("c3", "echo deep > /v/f", sub_path="x/y", mode=0o700)
    assert said(client, deep) == "" and tree(zone, "volume/cache/x/y/f").read_text() == "deep\n"


def test_limits_are_reserved(zone: Zone, client: Client, scratch: Path) -> None:
    """Other writers cannot use the bytes of a limited volume; a limit beyond the free space is refused."""
    first = with_volume("c1", "true", size_bytes=100 * MIB)
    assert said(client, first) == ""
    full = "dd if=/dev/zero of=/big bs=1M"
    assert "No space left" in said(client, creation("c2", "sh", "-c", full), delete=False)
    promised = "dd if=/dev/zero of=/v/a bs=1M count=96 conv=fsync && echo kept"
    assert said(client, with_volume("c3", promised, size_bytes=100 * MIB)).endswith("kept\n")
    with pytest.raises(Failed) as failed:
        client.call(create_container=with_volume("c4", "true", volume="more", size_bytes=64 * MIB))
    assert failed.value.code == EXHAUSTED
    assert "its limit takes" in failed.value.message and "are free" in failed.value.message
    assert os.listdir(tree(zone, "limits")) == ["volume-cache"]
    assert sorted(os.listdir(f"/proc/{zone.pid}/root/run/xenpod/memory")) == ["cache"]


def test_a_limit_above_the_disk_is_the_disks(client: Client, scratch: Path) -> None:
    request = creation("c1", "sh", "-c", "dd if=/dev/zero of=/big bs=1M count=100 && echo done")
    request.writable_bytes = 1 << 40
    assert said(client, request).endswith("done\n")


def test_limits_without_a_scratch_disk_are_of_memory(client: Client) -> None:
    request = creation("c1", "sh", "-c", "dd if=/dev/zero of=/big bs=65536; wc -c < /big")
    request.writable_bytes = 4 * MIB
    assert said(client, request).endswith(f"{4 * MIB}\n")


def test_statistics_of_a_shared_disk(client: Client, scratch: Path) -> None:
    """Usage of each container, counted again after a change; a file with two names counts once."""
    write = "mkdir /d; touch /a; ln /a /b; dd if=/dev/zero of=/a bs=1M count=5; sleep 1000"
    for name, script in (("c1", write), ("c2", "sleep 1000")):
        client.call(create_container=creation(name, "sh", "-c", script))
        client.call(start_container=pb.StartContainer(id=name))

    def seen() -> dict[str, tuple[int, int, int]]:
        stats = client.call(get_stats=pb.GetStats()).stats.containers
        return {
            one.id: (one.writable_layer_bytes, one.writable_layer_inodes, one.writable_layer_limit_bytes)
            for one in stats
        }

    block_until(lambda: seen()["c1"][0] >= 5 * MIB, DEADLINE, "it is not counted")
    used = seen()
    assert 5 * MIB <= used["c1"][0] < 5.2 * MIB and 0 < used["c2"][0] < 0.1 * MIB
    assert used["c1"][1] == used["c2"][1] + 2
    assert 0.9 * SIZE <= used["c1"][2] <= SIZE
    for name in ("c1", "c2"):
        client.delete(name)


def test_a_tree_of_any_depth_is_removed(zone: Zone, client: Client, scratch: Path) -> None:
    client.call(create_container=creation("c1", "true"))
    fd = os.open(tree(zone, "layer/c1/upper"), os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    client.delete("c1")
    block_until(lambda: not os.listdir(tree(zone, "trash")), DEADLINE, "the trash stays")


@pytest.mark.parametrize("name", ["", "../x", "a/b", "x" * 40])
def test_invalid_disk_name_is_refused(client: Client, name: str) -> None:
    with pytest.raises(Failed) as failed:
        client.call(mount_scratch=pb.MountScratch(disk=name))
    assert failed.value.code == INVALID


def test_the_scratch_disk_is_set_once_and_before_containers(client: Client, file: Path) -> None:
    client.call(create_container=creation("c1", "true"))
    with pytest.raises(Failed) as failed:
        client.call(mount_scratch=pb.MountScratch(disk="xvdzy"))
    assert failed.value.code == REFUSED
    client.delete("c1")
    client.call(mount_scratch=pb.MountScratch(disk="xvdzy"))
    client.call(mount_scratch=pb.MountScratch(disk="xvdzy"))
    with pytest.raises(Failed) as failed:
        client.call(mount_scratch=pb.MountScratch(disk="xvda"))
    assert failed.value.code == REFUSED


def test_a_too_small_disk_is_refused(zone: Zone, client: Client, tmp_path: Path) -> None:
    with writable_loop(tmp_path / "tiny.img", 64 * 1024) as device:
        zone.attach("xvdzy", device)
        with pytest.raises(Failed) as failed:
            client.call(mount_scratch=pb.MountScratch(disk="xvdzy"))
    assert failed.value.code == EXHAUSTED
    assert said(client, creation("c1", "echo", "in memory")) == "in memory\n"
