"""Anonymous volumes: a writable directory of the container's own at each VOLUME of its image."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.zone import Zone, attached, writable_loop
from tests.support.agent.zone_client import DEADLINE, Client, Failed
from tests.support.agent.zone_specs import creation
from tests.support.images.volume_image import OPTIONS, anonymous_squashfs
from tests.support.waiting import block_until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

INVALID, REFUSED = 3, 9
MIB = 1 << 20
MAPPING = pb.IdMapping(host_id=300_000, length=65_536)


@pytest.fixture(scope="session")
def volume_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with attached(anonymous_squashfs(tmp_path_factory.mktemp("anonymous"))) as device:
        yield device


@pytest.fixture
def volumes(zone: Zone, volume_disk: Path) -> Zone:
    """A zone with the image as xvdv, and files in memory."""
    zone.attach("xvdv", volume_disk)
    return zone


@pytest.fixture
def scratch(volumes: Zone, client: Client, tmp_path: Path) -> Iterator[Path]:
    """The directory of the scratch disk in the zone."""
    with writable_loop(tmp_path / "scratch.img", 256 * MIB) as device:
        volumes.attach("xvdzy", device)
        client.call(mount_scratch=pb.MountScratch(disk="xvdzy"))
        yield Path(f"/proc/{volumes.pid}/root/run/xenpod/scratch")


@pytest.fixture(params=["plain", "mapped", "changed"])
def pod(
    request: pytest.FixtureRequest, tmp_path: Path, root: Path, cgroups: list[Path], volume_disk: Path
) -> Iterator[tuple[Zone, Client, bool]]:
    """A zone without and with a user namespace, and with changed owners."""
    directory = tmp_path / "pod"
    directory.mkdir()
    environment: dict[str, Any] = {"XENPOD_IDS": "change"} if request.param == "changed" else {}
    zone = Zone(directory, root, cgroups, **environment)
    zone.unpause()
    client = zone.connect()
    if request.param != "plain":
        client.call(configure_zone=pb.ConfigureZone(id_mapping=MAPPING))
    zone.attach("xvdv", volume_disk)
    yield zone, client, request.param != "plain"
    client.close()
    zone.destroy()
    console = zone.console()
    assert "ERROR: AddressSanitizer" not in console and "runtime error" not in console, console


def with_volumes(container: str, script: str, *paths: str, **more: Any) -> pb.CreateContainer:
    """A container of the image with a VOLUME at each path, in the order of the mounts."""
    mounts = [
        {
            "destination": path,
            "type": "bind",
            "source": f"/run/xenpod/containers/{container}/volumes/v{number}",
            "options": ["rbind", "rprivate", "rw"],
        }
        for number, path in enumerate(paths)
    ]
    request = creation(container, "sh", "-c", script, disk="xvdv", mounts=mounts, **more)
    for number, path in enumerate(paths):
        request.anonymous_volumes.add(name=f"v{number}", path=path)
    return request


def said(client: Client, request: pb.CreateContainer) -> str:
    created = client.call(create_container=request).created
    client.call(start_container=pb.StartContainer(id=request.id))
    client.exited(request.id)
    return (client.output(created.stderr_stream) + client.output(created.stdout_stream)).decode()


def run_folder(zone: Zone) -> Path:
    return Path(f"/proc/{zone.pid}/root/run/xenpod")


def nothing_left(zone: Zone) -> bool:
    mounts = Path(f"/proc/{zone.pid}/mounts").read_text()
    return os.listdir(run_folder(zone) / "containers") == [] and "xenpod/containers" not in mounts


def attributes(listing: str) -> list[tuple[str, str, str]]:
    """Mode, owner and group of each line of ``ls -ln``."""
    lines = [line.split() for line in listing.splitlines() if line.startswith(("d", "-"))]
    return [(words[0], words[2], words[3]) for words in lines if len(words) > 5]


@pytest.mark.parametrize("readonly", [False, True])
def test_volume_begins_with_content_owner_and_mode_of_the_image(
    pod: tuple[Zone, Client, bool], readonly: bool
) -> None:
    zone, client, mapped = pod
    script = "ls -lnd /data /data/seed /data/deep /empty /new/dir; cat /data/seed /data/deep/er"
    writes = "echo more >> /data/seed; touch /data/new /empty/new /new/dir/new && tail -n 1 /data/seed"
    request = with_volumes(
        "c1",
        f"{script}; {writes}; rm -r /data/deep; ls /data; echo x > /outside",
        "/data",
        "/empty",
        "/new/dir",
        user_namespace=mapped,
        readonly=readonly,
    )
    text = said(client, request)
    assert attributes(text) == [
        ("drwxr-x---", "1000", "1001"),
        ("drwxrws---", "1000", "1001"),
        ("-rw-r-----", "1000", "1001"),
        ("drwx-----T", "7", "8"),
        ("drwxr-xr-x", "0", "0"),
    ]
    assert "seed\ndeeper\nmore\nnew\nseed\n" in text
    assert ("/outside: Read-only file system" in text) is readonly
    client.delete("c1")
    assert nothing_left(zone)


def test_files_of_an_unprivileged_owner_can_be_written_by_the_owner_alone(
    pod: tuple[Zone, Client, bool],
) -> None:
    _, client, mapped = pod
    script = "echo more >> /data/seed && cat /data/seed; echo x > /new/file"
    request = with_volumes("c1", script, "/data", "/new", user_namespace=mapped, user=1000)
    config = request.config_json.replace(b'"CAP_DAC_OVERRIDE", ', b"")
    request.config_json = config
    text = said(client, request)
    assert text.endswith("seed\nmore\n") and "/new/file: Permission denied" in text


def test_each_container_has_its_own_volumes(volumes: Zone, client: Client) -> None:
    script = "cat /data/seed; ls /new; echo changed > /data/seed; touch /new/mine; cat /data/seed"
    for name in ("c1", "c2"):
        assert said(client, with_volumes(name, script, "/data", "/new")) == "seed\nchanged\n"
    client.delete("c1")
    assert said(client, with_volumes("c1", script, "/data", "/new")) == "seed\nchanged\n"
    client.delete("c1")
    client.delete("c2")
    assert nothing_left(volumes)


def test_nested_volumes_are_separate(volumes: Zone, client: Client) -> None:
    script = "cat /data/deep/er /proc/mounts; touch /data/deep/x /data/y"
    text = said(client, with_volumes("c1", script, "/data", "/data/deep"))
    assert " /data overlay rw" in text and " /data/deep overlay rw" in text
    upper = run_folder(volumes) / "containers/c1/writable/volumes"
    assert os.listdir(upper / "v0/upper") == ["y"] and os.listdir(upper / "v1/upper") == ["x"]


def test_links_stay_within_the_image(volumes: Zone, client: Client) -> None:
    writes = "touch /link/a /up/b /up/new/dir/c; ls /data /empty /empty/new/dir"
    script = f"cat /link/seed; ls -lnd /up/ /up/new/dir; {writes}"
    text = said(client, with_volumes("c1", script, "/link", "/up", "/up/new/dir"))
    assert text.startswith("seed\n")
    assert attributes(text) == [("drwx-----T", "7", "8"), ("drwxr-xr-x", "0", "0")]
    assert "/data:\na\ndeep\nseed\n" in text and "/empty:\nb\nnew\n" in text
    assert text.endswith("/empty/new/dir:\nc\n")


def test_path_with_the_characters_of_mount_options_is_a_path(volumes: Zone, client: Client) -> None:
    text = said(client, with_volumes("c1", f"cd '/{OPTIONS}'; cat file; touch new; ls", f"/{OPTIONS}"))
    assert text == "a name\nfile\nnew\n"
    assert not (run_folder(volumes) / "containers/c1/writable/upper" / OPTIONS / "new").exists()


def test_volume_without_content_is_no_overlay(volumes: Zone, client: Client, scratch: Path) -> None:
    """Programs that make overlays of their own need another file system below."""
    text = said(client, with_volumes("c1", "cat /proc/mounts", "/data", "/empty", "/new"))
    kinds = {words[1]: words[2] for words in map(str.split, text.splitlines()) if len(words) == 6}
    assert (kinds["/data"], kinds["/empty"], kinds["/new"]) == ("overlay", "ext4", "ext4")


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("/plain", "/plain: not a directory: the image has something else there"),
        ("/plain/below", "/plain/below: not a directory: the image has something else there"),
        ("/endless", "/endless: not a directory: too many symbolic links"),
        ("/" + "x" * 300, "x: not a directory: File name too long"),
    ],
)
def test_path_without_a_directory_is_refused(volumes: Zone, client: Client, path: str, cause: str) -> None:
    with pytest.raises(Failed) as failed:
        client.call(create_container=with_volumes("c1", "true", "/data", "/new", path))
    assert failed.value.code == REFUSED and failed.value.message.isascii()
    assert cause in failed.value.message, failed.value.message
    assert client.listed() == {} and nothing_left(volumes)


@pytest.mark.parametrize(
    "wrong",
    [{"name": "../x"}, {"name": ""}, {"path": "data"}, {"path": ""}, {"path": "/" + "x" * 4095}],
)
def test_invalid_volume_is_refused(volumes: Zone, client: Client, wrong: dict[str, str]) -> None:
    request = creation("c1", "true")
    request.anonymous_volumes.add(**{"name": "v", "path": "/data", **wrong})
    with pytest.raises(Failed) as failed:
        client.call(create_container=request)
    assert failed.value.code == INVALID


def test_more_than_64_volumes_are_refused(volumes: Zone, client: Client) -> None:
    paths = [f"/v{number}" for number in range(64)]
    assert said(client, with_volumes("c1", "touch /v0/x /v63/x && echo done", *paths)) == "done\n"
    with pytest.raises(Failed, match="more than 64 anonymous volumes"):
        client.call(create_container=with_volumes("c2", "true", *paths, "/v64"))


def test_writes_count_in_the_writable_layer_on_disk(volumes: Zone, client: Client, scratch: Path) -> None:
    script = "for v in data new; do dd if=/dev/zero of=/$v/big bs=1M count=5; done; sleep 1000"
    client.call(create_container=with_volumes("c1", script, "/data", "/new"))
    client.call(start_container=pb.StartContainer(id="c1"))

    def used() -> int:
        return client.call(get_stats=pb.GetStats()).stats.containers[0].writable_layer_bytes

    block_until(lambda: used() >= 10 * MIB, DEADLINE, "the volumes are not counted")
    assert used() < 10.2 * MIB
    client.delete("c1")
    block_until(lambda: not os.listdir(scratch / "trash"), DEADLINE, "the trash stays")
    assert os.listdir(scratch / "layer") == [] and nothing_left(volumes)


@pytest.mark.parametrize("on_disk", [False, True])
def test_limit_of_the_writable_layer_includes_volumes(
    request: pytest.FixtureRequest, client: Client, volumes: Zone, on_disk: bool
) -> None:
    if on_disk:
        request.getfixturevalue("scratch")
    fill = "dd if=/dev/zero of=/new/big bs=65536; dd if=/dev/zero of=/data/big bs=65536; wc -c < /new/big"
    asked = with_volumes("c1", fill, "/data", "/new")
    asked.writable_bytes = 8 * MIB
    text = said(client, asked)
    assert text.count("No space left") == 2, text
    assert 7.5 * MIB <= int(text.splitlines()[-1]) <= 8 * MIB
    stats = client.call(get_stats=pb.GetStats(container_ids=["c1"])).stats.containers[0]
    assert 7.5 * MIB <= stats.writable_layer_bytes <= 8.3 * MIB


def test_the_agent_announces_anonymous_volumes(client: Client) -> None:
    assert client.hello is not None and client.hello.anonymous_volumes
