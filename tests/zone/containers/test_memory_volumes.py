"""Memory volumes: shared by all containers with their name, of the requested size, until the zone ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import Client, Failed
from tests.support.agent.zone_specs import creation
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

INVALID, REFUSED = 3, 9


def with_memory(container: str, script: str, **volume: object) -> pb.CreateContainer:
    """A container with the memory volume at /v."""
    source = f"/run/xenpod/containers/{container}/volumes/0"
    mount = {"destination": "/v", "type": "bind", "source": source, "options": ["rbind", "rw"]}
    request = creation(container, "sh", "-c", script, mounts=[mount])
    values: dict[str, object] = {"name": "0", "volume": "cache", "size_bytes": 1 << 20, "mode": 0o1777}
    request.memory_volumes.add(**(values | volume))
    return request


def said(client: Client, request: pb.CreateContainer) -> str:
    created = client.call(create_container=request).created
    client.call(start_container=pb.StartContainer(id=request.id))
    client.exited(request.id)
    text = (client.output(created.stdout_stream) + client.output(created.stderr_stream)).decode()
    client.delete(request.id)
    return text


def tree(zone: Zone) -> Path:
    return Path(f"/proc/{zone.pid}/root/run/xenpod")


def test_memory_volume_outlives_its_containers(zone: Zone, client: Client) -> None:
    assert said(
        client, with_memory("c1", "echo kept > /v/a; ls -ld /v", uid=7, gid=8, mode=0o2770)
    ).startswith("drwxrws---")
    assert os.listdir(tree(zone) / "containers") == []
    assert (
        said(client, with_memory("c2", "cat /v/a; id -u; ls -n / | grep ' v$'", mode=0o700)).split()[0]
        == "kept"
    )
    seen = (tree(zone) / "memory/cache").stat()
    assert (seen.st_uid, seen.st_gid, seen.st_mode & 0o7777) == (7, 8, 0o2770), "made once"
    assert said(client, with_memory("c3", "ls /v", volume="other")) == ""


def test_memory_volume_has_the_requested_size(zone: Zone, client: Client) -> None:
    text = said(client, with_memory("c1", "dd if=/dev/zero of=/v/a bs=1024 count=2000; wc -c < /v/a"))
    assert "No space" in text and "1048576\n" in text


def test_parts_of_a_memory_volume_are_mounted(zone: Zone, client: Client) -> None:
    request = with_memory("c1", "echo deep > /v/f", sub_path="x//y/./z/", uid=9, gid=10, mode=0o2775)
    assert said(client, request) == ""
    assert (tree(zone) / "memory/cache/x/y/z/f").read_text() == "deep\n"
    made = (tree(zone) / "memory/cache/x/y").stat()
    assert (made.st_uid, made.st_gid, made.st_mode & 0o7777) == (9, 10, 0o2775)
    assert said(client, with_memory("c2", "cat /v", sub_path="x/y/z/f")) == "deep\n"


@pytest.mark.parametrize(
    ("sub_path", "code"), [("../x", INVALID), ("a/../../x", INVALID), ("link", REFUSED), ("link/x", 13)]
)
def test_no_path_leads_out_of_a_memory_volume(zone: Zone, client: Client, sub_path: str, code: int) -> None:
    """Traps left by a container lead nowhere."""
    said(client, with_memory("c1", "ln -s /run/xenpod/containers /v/link"))
    (tree(zone) / "memory/cache/link").unlink(missing_ok=True)
    (tree(zone) / "memory/cache/link").symlink_to("/run/xenpod")
    before = sorted(os.listdir(tree(zone)))
    with pytest.raises(Failed) as failed:
        client.call(create_container=with_memory("c2", "true", sub_path=sub_path))
    assert failed.value.code == code, failed.value
    assert sorted(os.listdir(tree(zone))) == before and os.listdir(tree(zone) / "containers") == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a/b"},
        {"name": ".."},
        {"volume": ""},
        {"volume": "a/b"},
        {"mode": 0o10000},
        {"sub_path": "x" * 4096},
    ],
)
def test_malformed_memory_volume_is_refused(zone: Zone, client: Client, wrong: dict[str, object]) -> None:
    with pytest.raises(Failed) as failed:
        client.call(create_container=with_memory("c1", "true", **wrong))
    assert failed.value.code == INVALID
    assert not (tree(zone) / "memory").exists()


def test_too_many_volumes_are_refused(zone: Zone, client: Client) -> None:
    request = with_memory("c1", "true")
    for number in range(256):
        request.memory_volumes.add(name=f"n{number}", volume=f"v{number}", mode=0o700)
    with pytest.raises(Failed) as failed:
        client.call(create_container=request)
    assert failed.value.code == INVALID
