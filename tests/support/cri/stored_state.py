"""State directories of a release: recorded, stored, and laid out for today's daemons.

``python -m tests.support.cri.stored_state ARCHIVE [--checkout DIR]`` (as root) runs the daemons of a checkout
with a few pods, kills them while the pods run, and keeps their state directories, as on a host's disk after a
power cut. Run directories are not kept: a freshly booted host has none.

Records name files by absolute paths, all below one folder. The folder's name has the same length in every
copy: a copy is moved by a replacement of the name, byte by byte.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from tests.support.cri.cri_daemons import CriNode, container_status
from tests.support.protect.daemons import ROOT
from tests.support.waiting import found
from tools.localnode import images, layers, registry
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

IMAGE = "registry.test/small:1"
ENDS = ("/small", "end")
"""A command that prints ``ended``, and exits with 3."""
SERVES = ("/small",)
"""A command that prints ``serves``, and never exits."""
_KEPT = ("p/state", "state")
_EXPECTED = "expected.json"
_TIMEOUT = 60.0
_SMALL = r"""
static long call(long n, long a, long b, long c) {
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return r;
}
__asm__(".globl _start\n_start:\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
void begin(const long *stack) {
    if (stack[0] > 1) {
        call(1, 1, (long)"ended\n", 6);
        call(60, 3, 0, 0);
    }
    call(1, 1, (long)"serves\n", 7);
    for (;;)
        call(34, 0, 0, 0);
}
"""


def small_image(scratch: Path) -> images.PushedImage:
    """A program of a few kilobytes (x86-64, write, exit and pause)."""
    source, program = scratch / "small.c", scratch / "small"
    source.write_text(_SMALL)
    options = ("-Os", "-static", "-nostdlib", "-fno-stack-protector", "-ffreestanding", "-s")
    subprocess.run(["gcc", *options, "-Wl,--build-id=none", "-o", str(program), str(source)], check=True)
    folders = [layers.LayerEntry(name) for name in ("dev", "etc", "proc", "run", "sys", "tmp")]
    layer = layers.layer(*folders, layers.LayerEntry("small", content=program.read_bytes()))
    return images.PushedImage([layer], {"Cmd": list(SERVES)})


@asynccontextmanager
async def with_image(node: CriNode) -> AsyncIterator[Client]:
    """A client of a node that has pulled the small image."""
    async with registry.serve_registry(node.folder / "registry") as address:
        images.push(address, "small:1", await asyncio.to_thread(small_image, node.folder))
        registry.mirror(node.certs, "registry.test", address)
        async with node.client() as client:
            await client.pull(IMAGE)
            yield client


def pod_config(node: CriNode, name: str) -> cri.PodSandboxConfig:
    """A pod's configuration that sets every field of a record."""
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="kept", attempt=2),
        hostname=name,
        log_directory=str(node.logs / name),
        labels={"app": name},
        annotations={"note": f"of {name}"},
        dns_config=cri.DNSConfig(servers=["192.0.2.53"], searches=["kept.test"]),
        linux=cri.LinuxPodSandboxConfig(sysctls={"net.ipv4.ip_unprivileged_port_start": "80"}),
    )


async def run_pod(client: Client, config: cri.PodSandboxConfig) -> str:
    reply = await client.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=_TIMEOUT)
    return reply.pod_sandbox_id


async def create(
    client: Client, pod: str, config: cri.PodSandboxConfig, name: str, command: tuple[str, ...]
) -> str:
    container = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name, attempt=1),
        image=cri.ImageSpec(image=IMAGE),
        command=command,
        envs=[cri.KeyValue(key="KEPT", value=b"yes")],
        labels={"container": name},
        annotations={"note": f"of {name}"},
        log_path=f"{name}.log",
        linux=cri.LinuxContainerConfig(resources=cri.LinuxContainerResources(memory_limit_in_bytes=64 << 20)),
    )
    request = cri.CreateContainerRequest(pod_sandbox_id=pod, config=container, sandbox_config=config)
    return (await client.runtime.CreateContainer(request, timeout=_TIMEOUT)).container_id


async def started(
    client: Client, pod: str, config: cri.PodSandboxConfig, name: str, command: tuple[str, ...]
) -> str:
    container = await create(client, pod, config, name, command)
    await client.start(container)
    return container


async def exited(client: Client, container: str) -> cri.ContainerStatus:
    """Wait for the container's end: its status."""

    async def look() -> cri.ContainerStatus | None:
        status = await container_status(client, container)
        return status if status.state == cri.CONTAINER_EXITED else None

    return await found(look, _TIMEOUT)


async def shown(client: Client) -> dict[str, Any]:
    """The whole state by CRI, by id."""
    said: dict[str, Any] = {"pods": {}, "containers": {}, "images": {}}
    for pod in (await client.runtime.ListPodSandbox(cri.ListPodSandboxRequest())).items:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id)
        said["pods"][pod.id] = MessageToDict((await client.runtime.PodSandboxStatus(request)).status)
    for container in (await client.runtime.ListContainers(cri.ListContainersRequest())).containers:
        said["containers"][container.id] = MessageToDict(await container_status(client, container.id))
    for image in (await client.image.ListImages(cri.ListImagesRequest())).images:
        said["images"][image.id] = MessageToDict(image)
    return said


async def make(archive: Path, checkout: Path) -> None:
    """Run a checkout's daemons, and keep their files."""
    folder = new_folder()
    node = CriNode(folder, checkout=checkout)
    await node.start()
    try:
        async with with_image(node) as client:
            names = await _fill(node, client)
            expected = {"folder": str(folder), "names": names, **await shown(client)}
        for daemon in (node.daemon, node.protectd.daemon):
            await daemon.crash()
        await asyncio.to_thread(_keep, folder, archive, expected)
    finally:
        await node.close()
        shutil.rmtree(folder)


async def _fill(node: CriNode, client: Client) -> dict[str, str]:
    """Pods and containers in every lasting state; their ids."""
    config = pod_config(node, "runs")
    names = {"runs": (runs := await run_pod(client, config))}
    names["ended"] = await started(client, runs, config, "ended", ENDS)
    await exited(client, names["ended"])
    names["serves"] = await started(client, runs, config, "serves", SERVES)
    names["created"] = await create(client, runs, config, "created", SERVES)
    config = pod_config(node, "stopped")
    names["stopped"] = stopped = await run_pod(client, config)
    names["was stopped"] = await started(client, stopped, config, "serves", SERVES)
    await client.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=stopped))
    return names


def _keep(folder: Path, archive: Path, expected: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for name in _KEPT:
            shutil.copytree(folder / name, Path(scratch, name), symlinks=True)
        # The log of a database has checksums; a replaced path would break them.
        for database in Path(scratch).rglob("*.db"):
            with sqlite3.connect(database) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
        Path(scratch, _EXPECTED).write_text(json.dumps(expected, indent=1, sort_keys=True))
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:xz") as tar:
            for name in (_EXPECTED, *_KEPT):
                tar.add(Path(scratch, name), name)


@dataclass(frozen=True)
class Kept:
    """A copy of a stored state."""

    folder: Path
    expected: dict[str, Any]
    """The result of ``shown``, with the paths of this copy."""


def unpack(archive: Path) -> Kept:
    """A copy in a folder of its own, which the caller removes."""
    folder = new_folder()
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="fully_trusted")
    before = json.loads((folder / _EXPECTED).read_text())["folder"].encode()
    after = str(folder).encode()
    assert len(before) == len(after)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and before in (content := path.read_bytes()):
            path.write_bytes(content.replace(before, after))
    for database in folder.rglob("*.db"):
        with sqlite3.connect(database) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",), database
        connection.close()
    return Kept(folder, json.loads((folder / _EXPECTED).read_text()))


def new_folder() -> Path:
    """Make a folder whose name always has the same length."""
    return Path(tempfile.mkdtemp(prefix="xenpod-state-", dir="/tmp"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.support.cri.stored_state", description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose daemons write it (default: ours)")
    arguments = parser.parse_args()
    asyncio.run(make(arguments.archive.resolve(), arguments.checkout.resolve()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
