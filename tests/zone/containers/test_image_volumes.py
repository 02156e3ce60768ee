"""Image volumes: a container sees the other image, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent.zone import Zone, attached
from tests.support.agent.zone_client import Client, Failed
from tests.support.agent.zone_specs import creation, stack
from tests.support.images.volume_image import volume_squashfs
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

INVALID, REFUSED = 3, 9


@pytest.fixture(scope="session")
def volume_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with attached(volume_squashfs(tmp_path_factory.mktemp("volume"))) as device:
        yield device


@pytest.fixture
def volumes(zone: Zone, volume_disk: Path) -> Zone:
    """A zone with the image as xvdv."""
    zone.attach("xvdv", volume_disk)
    return zone


def with_volumes(container: str, script: str, **sub_paths: str) -> pb.CreateContainer:
    """Each at ``/<name>`` of the container."""
    mounts = [
        {
            "destination": f"/{name}",
            "type": "bind",
            "source": f"/run/xenpod/containers/{container}/volumes/{name}",
            "options": ["rbind", "ro", "nodev"],
        }
        for name in sub_paths
    ]
    request = creation(container, "sh", "-c", script, mounts=mounts)
    for name, sub_path in sub_paths.items():
        request.image_volumes.add(name=name, filesystems=stack("xvdv"), sub_path=sub_path)
    return request


def said(client: Client, request: pb.CreateContainer) -> str:
    created = client.call(create_container=request).created
    client.call(start_container=pb.StartContainer(id=request.id))
    client.exited(request.id)
    return (client.output(created.stdout_stream) + client.output(created.stderr_stream)).decode()


def test_an_image_and_its_parts_are_mounted(volumes: Zone, client: Client) -> None:
    script = "cat /v1/data/file /v2/er /v3; ls /v1; /v1/data/echo runs"
    text = said(client, with_volumes("c1", script, v1="", v2="data/deep", v3="data/file"))
    assert text.startswith("a file\ndeeper\na file\n") and text.endswith("runs\n")
    assert {"absolute", "data", "fifo"} < set(text.split())
    # The same disk in a second container, and after the first is gone.
    request = with_volumes("c2", "cat /v1/er", v1="data/deep/")
    assert said(client, request) == "deeper\n"
    client.delete("c1")
    assert said(client, with_volumes("c3", "cat /v1/er", v1="data/deep")) == "deeper\n"
    client.delete("c2")
    client.delete("c3")
    assert os.listdir(f"/proc/{volumes.pid}/root/run/xenpod/containers") == []
    assert "xenpod/containers" not in Path(f"/proc/{volumes.pid}/mounts").read_text()


def test_image_volume_is_read_only_without_devices(volumes: Zone, client: Client) -> None:
    script = "echo x >/v1/new; echo x >/v2; cat /proc/mounts; cat /v1/null"
    text = said(client, with_volumes("c1", script, v1="", v2="data/file"))
    assert text.count("Read-only file system") == 2
    assert "/v1 squashfs ro,nodev" in text
    assert "null" in text and "Permission denied" in text


def test_links_stay_within_the_image(volumes: Zone, client: Client) -> None:
    request = with_volumes("c1", "cat /v1/er /v2/file /v3", v1="absolute", v2="climbing", v3="data/sideways")
    assert said(client, request) == "deeper\na file\na file\n"


@pytest.mark.parametrize(
    ("sub_path", "cause"),
    [
        ("nothing", "no such path"),
        ("data/file/below", "no such path"),
        ("outside", "no such path"),
        ("magic", "no such path"),
        ("endless", "too many symbolic links"),
        ("fifo", "neither a directory nor a file"),
        ("null", "neither a directory nor a file"),
        ("\u00e9" * 300, "no such path"),
    ],
)
def test_missing_sub_paths_are_refused(volumes: Zone, client: Client, sub_path: str, cause: str) -> None:
    with pytest.raises(Failed, match=cause) as failed:
        client.call(create_container=with_volumes("c1", "true", v1="", v2=sub_path))
    assert failed.value.code == REFUSED and failed.value.message.isascii()
    assert client.listed() == {}
    assert os.listdir(f"/proc/{volumes.pid}/root/run/xenpod/containers") == []
    assert "xenpod/containers" not in Path(f"/proc/{volumes.pid}/mounts").read_text()
    assert said(client, with_volumes("c1", "cat /v1/data/file", v1="")) == "a file\n"


def test_each_disk_is_waited_for(zone: Zone, client: Client, volume_disk: Path) -> None:
    call = client.begin(create_container=with_volumes("c1", "true", v1=""))
    client.call(get_facts=pb.GetFacts())
    assert call not in client.replies
    zone.attach("xvdv", volume_disk)
    assert client.finish(call).created.pid > 1


def test_a_creation_waiting_for_a_volume_can_be_deleted(zone: Zone, client: Client) -> None:
    call = client.begin(create_container=with_volumes("c1", "true", v1=""))
    client.delete("c1")
    with pytest.raises(Failed, match="being deleted"):
        client.finish(call)
    assert os.listdir(f"/proc/{zone.pid}/root/run/xenpod/containers") == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../x"},
        {"name": ""},
        {"filesystems": stack("../null")},
        {"filesystems": stack("xvda", type="ext4")},
        {"filesystems": []},
        {"filesystems": stack("xvda", "xvdb", "xvda")},
        {"filesystems": stack(*(f"xvd{n}" for n in "abcdefghi"))},
        {"sub_path": "x" * 4096},
    ],
)
def test_invalid_requests_are_refused(zone: Zone, client: Client, wrong: dict[str, object]) -> None:
    request = creation("c1", "true")
    request.image_volumes.add(**{"name": "v", "filesystems": stack("xvda"), **wrong})
    with pytest.raises(Failed) as failed:
        client.call(create_container=request)
    assert failed.value.code == INVALID


def test_too_many_volumes_are_refused(zone: Zone, client: Client) -> None:
    request = creation("c1", "true")
    for number in range(33):
        request.image_volumes.add(name=f"v{number}", filesystems=stack("xvda"))
    with pytest.raises(Failed, match="more than 32 volumes"):
        client.call(create_container=request)


def test_two_volumes_with_an_equal_name_are_refused(volumes: Zone, client: Client) -> None:
    request = with_volumes("c1", "true", v1="")
    request.image_volumes.add(name="v1", filesystems=stack("xvdv"))
    with pytest.raises(Failed, match="File exists"):
        client.call(create_container=request)
    assert os.listdir(f"/proc/{volumes.pid}/root/run/xenpod/containers") == []
