"""Requests that protectd refuses, each by its possible calls; values at a limit pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import TIMEOUT, Served, served
from tests.support.protect.zones import failing
from xenpod_proto.protect.v1 import protect_pb2 as pb

GIB = 1 << 30
KIB = 1 << 10
REFUSED = grpc.StatusCode.INVALID_ARGUMENT


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A node with a zone; no test leaves a workload."""
    async with served(tmp_path_factory.mktemp("p"), MemoryToolstack()) as node:
        await node.create_zone()
        yield node


pytestmark = pytest.mark.asyncio(loop_scope="module")

ZONES: dict[str, tuple[dict[str, object], str]] = {
    "two interfaces": ({"interfaces": 2}, "2 interfaces are more than 1"),
    "an unknown profile": ({"profile": "none"}, "there are: default"),
    "too little memory": ({"resources": pb.ZoneResources(memory_bytes=1)}, "0 MiB of memory are not between"),
    "too much memory": ({"resources": pb.ZoneResources(memory_bytes=1 << 50)}, "of memory are not between"),
    "too many vCPUs": ({"resources": pb.ZoneResources(vcpus=100_000)}, "100000 vCPUs are more than"),
    "a long name": ({"name": "x" * 257}, "at most 256 printable characters"),
    "a name that is no line": ({"name": "a\nb"}, "at most 256 printable characters"),
    "a host name": ({"hostname": "a_b"}, "at most 64 of"),
    "a long host name": ({"hostname": "a" * 65}, "at most 64 of"),
    "a relative namespace": ({"netns_path": "run/netns/x"}, "want an absolute path"),
    "a namespace above": ({"netns_path": "/run/../etc"}, "want an absolute path"),
    "a long namespace": ({"netns_path": "/" + "x" * 4096}, "at most 4096 bytes"),
    "a namespace with a zero": ({"netns_path": "/a\0b"}, "want an absolute path"),
    "a sysctl of a long name": ({"sysctls": {"net." + "x" * 197: "1"}}, "not one of net"),
    "a sysctl of a long value": ({"sysctls": {"net.x": "1" * 1025}}, "is not a line"),
    "a sysctl of the host": ({"sysctls": {"vm.swappiness": "1"}}, "not one of net"),
    "a sysctl of two lines": ({"sysctls": {"net.ipv4.x": "1\n2"}}, "is not a line"),
    "too many sysctls": ({"sysctls": {f"net.x{n}": "1" for n in range(67)}}, "67 are more than 66"),
    "no ids": ({"id_mapping": pb.IdMapping(host_id=65_536)}, "0 ids from 65536"),
    "ids to the last": ({"id_mapping": pb.IdMapping(host_id=1, length=2**32 - 1)}, "ids from 1"),
    "a kernel without an image": ({"kernel": pb.ZoneKernel(name="k")}, "a kernel without an image"),
    "a relative kernel": ({"kernel": pb.ZoneKernel(image_path="boot/k")}, "want an absolute path"),
    "a relative initramfs": (
        {"kernel": pb.ZoneKernel(image_path="/k", initramfs_path="i")},
        "want an absolute path",
    ),
    "relative add-ons": (
        {"kernel": pb.ZoneKernel(image_path="/k", addons_path="a")},
        "want an absolute path",
    ),
    "a kernel's name": ({"kernel": pb.ZoneKernel(name="\x1b[1m", image_path="/k")}, "printable characters"),
}


@pytest.mark.parametrize("what", ZONES)
async def test_an_invalid_zone_is_refused(node: Served, what: str) -> None:
    values, cause = ZONES[what]
    async with failing(REFUSED) as said:
        await node.create_zone("z2", **values)
    assert cause in said[0] and said[0].startswith(("create zone ", "find profile "))
    assert len(node.toolstack.domains) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"interfaces": 1, "name": "x" * 256, "hostname": "a" * 64},
        {"id_mapping": pb.IdMapping(host_id=1, length=2**32 - 2)},
        {"sysctls": {"net.ipv4.x": "1" * 1024, "kernel.sem": "1 2", "fs.mqueue.msg_max": "1"}},
        {"sysctls": {f"net.x{n}": "1" for n in range(66)}},
        {"sysctls": {"net." + "x" * 196: "1"}, "netns_path": "/" + "x" * 4095},
    ],
)
async def test_a_zone_at_the_limits_is_accepted(node: Served, values: dict[str, object]) -> None:
    await node.create_zone("z2", **values)
    await node.clients.zones.DestroyZone(pb.DestroyZoneRequest(id="z2"), timeout=TIMEOUT)


def file(name: str = "f", size: int = 1, mode: int = 0o644) -> pb.File:
    return pb.File(name=name, mode=mode, content=b"x" * size)


def files(count: int, size: int = 1) -> dict[str, object]:
    return {"files": [file(f"f{number}", size) for number in range(count)]}


def volumes(count: int = 1, **more: object) -> dict[str, object]:
    values: dict[str, object] = {"host_path": "/srv"} | more
    return {"volumes": [pb.Volume(**({"name": f"v{at}"} | values)) for at in range(count)]}  # type: ignore[arg-type]


def image_volumes(count: int = 1, **more: object) -> dict[str, object]:
    filesystems = [pb.Filesystem(path="/image", type="squashfs")]
    values = {"filesystems": filesystems} | more
    return {"image_volumes": [pb.ImageVolume(**({"name": f"i{at}"} | values)) for at in range(count)]}  # type: ignore[arg-type]


def file_volumes(count: int = 1, **more: object) -> dict[str, object]:
    values: dict[str, object] = {"host_path": "/nowhere"} | more
    return {"file_volumes": [pb.FileVolume(**({"name": f"f{at}"} | values)) for at in range(count)]}  # type: ignore[arg-type]


def anonymous_volumes(count: int = 1, **more: str) -> dict[str, object]:
    values = {"path": "/data"} | more
    return {"anonymous_volumes": [pb.AnonymousVolume(**({"name": f"a{at}"} | values)) for at in range(count)]}


def memory_volumes(count: int = 1, **more: object) -> dict[str, object]:
    values: dict[str, object] = {"volume": "shared", "mode": 0o777} | more
    return {"memory_volumes": [pb.MemoryVolume(**({"name": f"m{at}"} | values)) for at in range(count)]}  # type: ignore[arg-type]


def stack(count: int, type: str = "squashfs", path: str = "/image") -> dict[str, object]:
    return {"filesystems": [pb.Filesystem(path=path, type=type)] * count}


def padded(size: int) -> bytes:
    """A JSON object of this number of bytes."""
    return b'{"a":"' + b"x" * (size - 8) + b'"}'


def devices(count: int = 1, **more: object) -> dict[str, object]:
    values: dict[str, object] = {"host_path": "/dev/a", "container_path": "/dev/a"} | more
    return {"devices": [pb.WorkloadDevice(**values) for _ in range(count)]}  # type: ignore[arg-type]


WORKLOADS: dict[str, tuple[dict[str, Any], str]] = {
    "an id": ({"id": "W1"}, "is not 1 to 64 of"),
    "a zone's id": ({"zone_id": "../z1"}, "is not 1 to 64 of"),
    "stdin once without stdin": ({"stdin_once": True}, "stdin_once without stdin"),
    "no JSON": ({"oci_config": b"{"}, "not JSON"),
    "no object": ({"oci_config": b"[]"}, "not a JSON object"),
    "a large configuration": ({"oci_config": padded(512 * KIB + 1)}, "more than 524288"),
    "a relative log": ({"log_path": "w1.log"}, "want an absolute path"),
    "no file system": (stack(0), "0 file systems are not 1 to"),
    "too many file systems": (stack(200), "200 file systems are not 1 to"),
    "a type of file system": (stack(1, type="ext4"), "file system 'ext4' is not one of squashfs, erofs"),
    "a relative image": (stack(1, path="image"), "want an absolute path"),
    "a file of a long name": ({"files": [file("x" * 256)]}, "want a plain file name"),
    "a file of no name": ({"files": [file("")]}, "want a plain file name"),
    "a file with a zero": ({"files": [file("a\0b")]}, "want a plain file name"),
    "two files of a name": ({"files": [file("a"), file("a")]}, "two files 'a'"),
    "a file's mode": ({"files": [file(mode=0o10000)]}, "mode 0o10000"),
    "a file's path": ({"files": [file("a/b")]}, "want a plain file name"),
    "a file above": ({"files": [file("..")]}, "want a plain file name"),
    "too many files": (files(33), "33 files of 33 bytes"),
    "large files": (files(2, 192 * KIB + 1), "2 files of 393218 bytes"),
    "too many volumes": (volumes(257), "257 volumes are more than 256"),
    "two volumes of a name": (volumes(2, name="v"), "two volumes 'v'"),
    "a volume's name": (volumes(name="a/b"), "want a plain file name"),
    "a relative volume": (volumes(host_path="srv"), "want an absolute path"),
    "too many image volumes": (image_volumes(33), "33 image volumes are more than 32"),
    "two image volumes of a name": (image_volumes(2, name="i"), "two image volumes 'i'"),
    "an image volume's name": (image_volumes(name="I"), "is not 1 to 64 of"),
    "an image volume of nothing": (image_volumes(filesystems=[]), "volume i0: 0 file systems"),
    "an image volume's long sub path": (image_volumes(sub_path="x" * 4096), "of less than 4096 bytes"),
    "an image volume's sub path with a zero": (image_volumes(sub_path="a\0"), "want a relative path"),
    "an image volume's sub path": (image_volumes(sub_path="a/../../b"), "want a relative path"),
    "too many memory volumes": (memory_volumes(257), "257 memory volumes are more than 256"),
    "two memory volumes of a name": (memory_volumes(2, name="m"), "two volumes 'm'"),
    "a memory and an image volume of a name": (
        memory_volumes(name="same") | image_volumes(name="same"),
        "two volumes 'same'",
    ),
    "a memory volume's name": (memory_volumes(name="M"), "is not 1 to 64 of"),
    "a memory volume's mode": (memory_volumes(mode=0o10000), "mode 0o10000"),
    "a memory volume's path": (memory_volumes(volume="a/b"), "want a plain file name"),
    "a memory volume's sub path": (memory_volumes(sub_path="/a"), "want a relative path"),
    "too many file volumes": (file_volumes(257), "257 file volumes are more than 256"),
    "two file volumes of a name": (file_volumes(2, name="f"), "two volumes 'f'"),
    "a file and a memory volume of a name": (
        file_volumes(name="same") | memory_volumes(name="same"),
        "two volumes 'same'",
    ),
    "too many anonymous volumes": (anonymous_volumes(65), "65 anonymous volumes are more than 64"),
    "two anonymous volumes of a name": (anonymous_volumes(2, name="a"), "two volumes 'a'"),
    "an anonymous and a file volume of a name": (
        anonymous_volumes(name="same") | file_volumes(name="same"),
        "two volumes 'same'",
    ),
    "an anonymous volume's name": (anonymous_volumes(name="A"), "is not 1 to 64 of"),
    "an anonymous volume's path": (anonymous_volumes(path="data"), "want an absolute path"),
    "an anonymous volume above the root": (anonymous_volumes(path="/a/../.."), "without .."),
    "long paths of anonymous volumes": (
        anonymous_volumes(17, path="/" + "x" * 4000),
        "paths of anonymous volumes: 68017 bytes are more than 65536",
    ),
    "a device's path": (devices(host_path="srv"), "want an absolute path"),
    "a device's path in the container": (devices(container_path="../x"), "want an absolute path"),
    "a device in a folder": (devices(container_path="/dev/"), "ends with a slash"),
    "a device of both": (devices(name="fast"), "either a name or a path"),
    "a device's name": (devices(host_path="", name="A"), "want 1 to 63 of"),
    "two devices at one path": (devices(2), "two devices at /dev/a"),
    "many devices": (devices(33), "33 devices are more than 32"),
    "a file volume's name": (file_volumes(name="F"), "is not 1 to 64 of"),
    "a file volume's path": (file_volumes(host_path="srv"), "want an absolute path"),
    "a file volume's copy": (file_volumes(volume="a/b"), "want a plain file name"),
    "a file volume that gives back much": (
        file_volumes(return_bytes=4097, writable=True),
        "4097 bytes to be returned, more than 4096",
    ),
    "a file volume of many that gives back": (
        file_volumes(volume="v", return_bytes=1, writable=True),
        "1 bytes to be returned of a copy that others share",
    ),
    "a read-only file volume that gives back": (file_volumes(return_bytes=1), "and it is read-only"),
    "a file volume beneath another directory": (
        file_volumes(return_bytes=1, writable=True, beneath="/other"),
        "its path is not beneath",
    ),
    "a file volume beneath nothing": (file_volumes(beneath="/"), "without return_bytes"),
}


@pytest.mark.parametrize("what", WORKLOADS)
async def test_an_invalid_workload_is_refused(node: Served, what: str) -> None:
    values, cause = WORKLOADS[what]
    seen = len(node.agent().requests)
    async with failing(REFUSED) as said:
        await node.create(**values)
    assert cause in said[0] and said[0].startswith("create ")
    assert len(node.agent().requests) == seen


THERE = pb.Filesystem(path="/etc/passwd", type="erofs")
"""protectd does not look into an image, but the image must exist."""

LIMITS: dict[str, dict[str, Any]] = {
    "configuration": {"oci_config": padded(512 * KIB)},
    "files": files(32, 12 * KIB),
    "large files": files(2, 192 * KIB),
    "a file's mode": {"files": [file(mode=0o7777)]},
    "volumes": volumes(256),
    "read-only": volumes(readonly=True, follow_host=True),
    "memory volumes": memory_volumes(256, mode=0o7777),
    "file volumes": file_volumes(256),
    "what a file volume gives back": file_volumes(return_bytes=4096, writable=True),
    "anonymous volumes": anonymous_volumes(64, path="/" + "x" * 1023),
    "stdin once": {"stdin": True, "stdin_once": True},
    "no log": {"log_path": ""},
    "a file of a long name": {"files": [file("x" * 255)]},
    "a sub path": image_volumes(sub_path="a/" * 2047 + "b", filesystems=[THERE]),
    "every file system": {"filesystems": [THERE]},
}


@pytest.mark.parametrize("what", LIMITS)
async def test_a_workload_at_the_limits_is_accepted(node: Served, what: str) -> None:
    await node.create(**LIMITS[what])
    await node.clients.workloads.DeleteWorkload(pb.DeleteWorkloadRequest(id="w1"), timeout=TIMEOUT)


EXECS: dict[str, tuple[pb.ExecInput, str]] = {
    "its timeout": (
        pb.ExecInput(start=pb.ExecStart(workload_id="w1", process=b"{}", timeout_ns=-1)),
        "negative",
    ),
    "its workload": (pb.ExecInput(start=pb.ExecStart(workload_id="W", process=b"{}")), "is not 1 to 64 of"),
    "no process": (pb.ExecInput(start=pb.ExecStart(workload_id="w1")), "not JSON"),
    "a large process": (
        pb.ExecInput(start=pb.ExecStart(workload_id="w1", process=padded(256 * KIB + 1))),
        "more than 262144",
    ),
    "no start": (pb.ExecInput(stdin=b"x"), "the first message is not start"),
}


@pytest.mark.parametrize("what", EXECS)
async def test_an_invalid_exec_is_refused(node: Served, what: str) -> None:
    first, cause = EXECS[what]
    async with failing(REFUSED) as said:
        async for _ in node.clients.workloads.Exec(iter([first]), timeout=TIMEOUT):
            pass
    assert cause in said[0] and said[0].startswith("exec")


async def test_an_invalid_update_is_refused(node: Served) -> None:
    for resources, cause in ((b"[]", "not a JSON object"), (padded(64 * KIB + 1), "more than 65536")):
        request = pb.UpdateWorkloadRequest(id="w1", resources=resources)
        async with failing(REFUSED) as said:
            await node.clients.workloads.UpdateWorkload(request, timeout=TIMEOUT)
        assert cause in said[0]


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"zone_id": "Z"}, "is not 1 to 64 of"),
        ({"netns_path": "x"}, "want an absolute path"),
        ({"interface": "x" * 16}, "want 1 to 15 of"),
        ({"interface": ""}, "want 1 to 15 of"),
    ],
)
async def test_an_invalid_network_is_refused(node: Served, values: dict[str, Any], cause: str) -> None:
    request = pb.ConnectNetworkRequest(
        **({"zone_id": "z1", "netns_path": "/x", "interface": "eth0"} | values)
    )
    async with failing(REFUSED) as said:
        await node.clients.zones.ConnectNetwork(request, timeout=TIMEOUT)
    assert cause in said[0]


@pytest.mark.parametrize("port", [0, 65_536])
async def test_an_invalid_port_is_refused(node: Served, port: int) -> None:
    first = pb.DialInput(start=pb.DialStart(zone_id="z1", port=port))
    async with failing(REFUSED) as said:
        async for _ in node.clients.zones.Dial(iter([first]), timeout=TIMEOUT):
            pass
    assert f"port {port}" in said[0]


async def test_every_field_with_a_path_is_tried() -> None:
    """A new message with a path needs a check, and a case in the table."""
    fields = {
        f"{message.name}.{field.name}"
        for message in pb.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
        if field.name.endswith("path") and message.name not in ("ConnectNetworkRequest", "CreateZoneRequest")
    }
    assert fields == {
        "AnonymousVolume.path",
        "CreateWorkloadRequest.log_path",
        "FileVolume.host_path",
        "Filesystem.path",
        "ImageVolume.sub_path",
        "MemoryVolume.sub_path",
        "Volume.host_path",
        "WorkloadDevice.container_path",
        "WorkloadDevice.host_path",
        "ZoneKernel.addons_path",
        "ZoneKernel.image_path",
        "ZoneKernel.initramfs_path",
    }
