"""Stacks: several file systems over each other, as the root and as the volume of a container."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.zone import Zone, attached
from tests.support.agent.zone_client import Client, Failed
from tests.support.agent.zone_specs import creation, stack
from tests.support.images import layered_image
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

INVALID, TOO_LATE = 3, 4
MAPPING = pb.IdMapping(host_id=300_000, length=65_536)
LAYERS = ("xvdl", "xvdm", "xvdt")


@pytest.fixture(scope="session")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Lowest, middle and top as block devices."""
    folder = tmp_path_factory.mktemp("layers")
    with ExitStack() as all_of_them:
        files = [layered_image.lowest(folder), *layered_image.upper_two(folder)]
        yield [all_of_them.enter_context(attached(file)) for file in files]


def with_layers(zone: Zone, layers: list[Path]) -> None:
    for name, device in zip(LAYERS, layers, strict=True):
        zone.attach(name, device)


@pytest.fixture(params=["plain", "mapped", "changed"])
def pod(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    root: Path,
    cgroups: list[Path],
    disk: Path,
    layers: list[Path],
) -> Iterator[tuple[Zone, Client, bool]]:
    """A zone with all of the disks: without and with a user namespace, and with changed owners."""
    directory = tmp_path / "pod"
    directory.mkdir()
    environment: dict[str, Any] = {"XENPOD_IDS": "change"} if request.param == "changed" else {}
    zone = Zone(directory, root, cgroups, **environment)
    zone.unpause()
    client = zone.connect()
    if request.param != "plain":
        client.call(configure_zone=pb.ConfigureZone(id_mapping=MAPPING))
    zone.attach("xvda", disk)
    with_layers(zone, layers)
    yield zone, client, request.param != "plain"
    client.close()
    zone.destroy()
    console = zone.console()
    assert "ERROR: AddressSanitizer" not in console and "runtime error" not in console, console


def said(client: Client, request: pb.CreateContainer) -> str:
    created = client.call(create_container=request).created
    client.call(start_container=pb.StartContainer(id=request.id))
    client.exited(request.id)
    return (client.output(created.stdout_stream) + client.output(created.stderr_stream)).decode()


def nothing_is_mounted(zone: Zone) -> None:
    assert os.listdir(f"/proc/{zone.pid}/root/run/xenpod/containers") == []
    assert "xenpod/containers" not in Path(f"/proc/{zone.pid}/mounts").read_text()


def bind(container: str, name: str) -> dict[str, object]:
    source = f"/run/xenpod/containers/{container}/volumes/{name}"
    return {"destination": f"/{name}", "type": "bind", "source": source, "options": ["rbind", "ro", "nodev"]}


def test_a_root_of_several_filesystems_is_merged(pod: tuple[Zone, Client, bool]) -> None:
    """Whiteouts, opaque directories, and files that change their kind; the root is writable."""
    zone, client, userns = pod
    script = (
        layered_image.LISTING + "ls merged opaque was-directory 2>&1; ls -lnd / merged merged/middle setuid;"
        "rm kept; echo new >opaque/low; cat opaque/low; test -e kept || echo went"
    )
    request = creation("c1", "sh", "-c", f"cd /; {script}", user_namespace=userns)
    del request.rootfs[:]
    request.rootfs.extend(stack("xvda", *LAYERS))
    text = said(client, request)
    assert text.startswith(layered_image.SHOWN)
    assert re.search("merged:\nboth\nmiddle\ntop\n\nopaque:\nmiddle\n", text)
    assert "was-directory: No such file" in text
    listed = {line.split()[-1]: line.split() for line in text.splitlines() if re.match("[d-]r", line)}
    assert {name: (words[0], words[2]) for name, words in listed.items()} == {
        "/": ("drwxr-x--x", "0"),
        "merged": ("drwxr-xr-x", "1000"),
        "merged/middle": ("-rw-r--r--", "1000"),
        "setuid": ("-rwsr-xr-x", "7"),
    }
    assert text.endswith("new\nwent\n")
    # The disks have no writes: a second container sees the same files.
    again = creation("c2", "sh", "-c", f"cd /; {layered_image.LISTING}", user_namespace=userns)
    del again.rootfs[:]
    again.rootfs.extend(stack("xvda", *LAYERS))
    assert said(client, again) == layered_image.SHOWN
    client.delete("c1")
    client.delete("c2")
    nothing_is_mounted(zone)


def test_a_volume_of_several_filesystems_is_merged(pod: tuple[Zone, Client, bool]) -> None:
    """The whole overlay, and single parts; all are read-only."""
    zone, client, userns = pod
    script = (
        f"cd /v; {layered_image.LISTING} cd /; ls /merged; cat /tree/top; ls -lnd /merged/middle;"
        "echo x >/v/new; echo x >/merged/top; rm /v/kept; cat /proc/mounts"
    )
    names = ("v", "merged", "tree")
    mounts = [bind("c1", name) for name in names]
    request = creation("c1", "sh", "-c", script, user_namespace=userns, mounts=mounts)
    for name in names:
        request.image_volumes.add(name=name, sub_path="" if name == "v" else name, filesystems=stack(*LAYERS))
    text = said(client, request)
    assert text.startswith(f"{layered_image.SHOWN}both\nmiddle\ntop\ntop\n-rw-r--r-- ")
    assert re.search(r" 1000 +1000 .* /merged/middle", text)
    assert text.count("Read-only file system") == 3
    assert all(re.search(rf"^overlay /{name} overlay ro,nodev", text, re.MULTILINE) for name in names)
    client.delete("c1")
    nothing_is_mounted(zone)


def test_stack_of_the_maximal_depth_is_mounted(zone: Zone, client: Client, tmp_path: Path) -> None:
    """Eight below a volume with the longest of names fit the kernel's options."""
    longest, volume = "c" * 64, "v" * 64
    names = [f"xvd{letter}" for letter in "bcdefgh"]
    request = creation(longest, "sh", "-c", f"cd /{volume}; cat *", mounts=[bind(longest, volume)])
    request.rootfs.extend(stack(*names))
    request.image_volumes.add(name=volume, filesystems=stack(*names, "xvdi"))
    with ExitStack() as devices:
        for name in (*names, "xvdi"):
            entries = [layered_image.directory("./"), layered_image.file(name)]
            out = layered_image.squashed(tmp_path / f"{name}.squashfs", entries)
            zone.attach(name, devices.enter_context(attached(out)))
        assert said(client, request).split() == [*names, "xvdi"]
        client.delete(longest)
        nothing_is_mounted(zone)


def test_disk_with_a_second_name_is_refused_in_a_stack(zone: Zone, client: Client, disk: Path) -> None:
    """overlayfs refuses the same layer twice."""
    zone.attach("xvdb", disk)
    request = creation("c1", "true")
    request.rootfs.extend(stack("xvdb"))
    with pytest.raises(Failed, match="mount overlay: .*Too many levels of symbolic links"):
        client.call(create_container=request)
    nothing_is_mounted(zone)


def test_each_of_a_stack_is_waited_for(zone: Zone, client: Client, layers: list[Path]) -> None:
    request = creation("c1", "true")
    request.rootfs.extend(stack(*LAYERS))
    call = client.begin(create_container=request)
    for name, device in reversed(list(zip(LAYERS, layers, strict=True))):
        client.call(get_facts=pb.GetFacts())
        assert call not in client.replies
        zone.attach(name, device)
    assert client.finish(call).created.pid > 1
    client.delete("c1")
    nothing_is_mounted(zone)


def test_failed_mount_of_a_stack_leaves_none_mounted(zone: Zone, client: Client, layers: list[Path]) -> None:
    """Any mount may fail: the other mounts come before or after."""
    with_layers(zone, layers)
    for number in range(4):
        request = creation(f"c{number}", "true")
        request.rootfs.extend(stack(*LAYERS))
        request.rootfs[number].type = "erofs"
        with pytest.raises(Failed, match="mount: /dev/xvd"):
            client.call(create_container=request)
        nothing_is_mounted(zone)
        request = creation(f"c{number}", "true")
        request.image_volumes.add(name="fine", filesystems=stack("xvda", *LAYERS))
        request.image_volumes.add(name="wrong", filesystems=stack("xvda", *LAYERS))
        request.image_volumes[1].filesystems[number].type = "erofs"
        with pytest.raises(Failed, match="mount: /dev/xvd"):
            client.call(create_container=request)
        nothing_is_mounted(zone)
    assert client.listed() == {}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([], "0 file systems"),
        (stack(*(f"xvd{letter}" for letter in "abcdefghi")), "9 file systems"),
        (stack("xvda", "xvdb", "xvda"), "in its stack twice"),
        (stack("xvda", "../null"), "not a disk's name"),
        (stack("xvda", ""), "not a disk's name"),
        (stack("x" * 17, "xvda"), "not a disk's name"),
        (stack("xvda:/", "xvdb"), "not a disk's name"),
        (stack("xvda", "xvdb", type="ext4"), "neither squashfs nor erofs"),
        (stack("xvda", type="proc"), "neither squashfs nor erofs"),
        ([pb.Filesystem()], "not a disk's name"),
    ],
)
def test_invalid_stacks_are_refused(client: Client, wrong: list[pb.Filesystem], words: str) -> None:
    request = creation("c1", "true")
    del request.rootfs[:]
    request.rootfs.extend(wrong)
    with pytest.raises(Failed, match=words) as failed:
        client.call(create_container=request)
    assert failed.value.code == INVALID
    request = creation("c1", "true")
    request.image_volumes.add(name="v", filesystems=wrong)
    with pytest.raises(Failed, match=f"volume 0: .*{words}|volume 0: {words}") as failed:
        client.call(create_container=request)
    assert failed.value.code == INVALID
