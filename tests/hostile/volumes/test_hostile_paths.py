"""Paths that pods name to xenpod-cri itself, on a file server that never answers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import grpc
import grpc.aio
import pytest

from cri.container import host_files
from daemonkit.faults import Broken, Invalid, Refused, TooLate
from daemonkit.host.lookup import READ_MAX_BYTES
from daemonkit.host.paths import HostPaths
from tests.support.cri.cri_daemons import CriNode, needs_node, pulled
from tests.support.protect.daemons import GUEST
from tests.support.protect.silent_server import SilentServer
from tests.support.waiting import until
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]
TOO_LATE = grpc.StatusCode.DEADLINE_EXCEEDED
PROGRAM = GUEST / "lookup"
POD = cri.PodSandboxMetadata(name="web", namespace="shop")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[SilentServer]:
    with SilentServer(tmp_path / "silent") as server:
        yield server


@pytest.fixture
def paths() -> Iterator[HostPaths]:
    with closing(HostPaths(PROGRAM)) as made:
        yield made


@pytest.fixture
def impatient() -> Iterator[HostPaths]:
    with closing(HostPaths(PROGRAM, seconds=0.2)) as made:
        yield made


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    await made.start()
    yield made
    await made.close()
    await made.nothing_left()


def _config(name: str, log_directory: Path, profile: str = "") -> cri.PodSandboxConfig:
    config = cri.PodSandboxConfig(log_directory=str(log_directory))
    config.metadata.CopyFrom(cri.PodSandboxMetadata(name=name, namespace="evil", uid=name))
    if profile:
        seccomp = config.linux.security_context.seccomp
        seccomp.profile_type, seccomp.localhost_ref = cri.SecurityProfile.Localhost, profile
    return config


async def _run(client: Client, config: cri.PodSandboxConfig) -> None:
    await client.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=60)


async def _create(client: Client, pod: str, sandbox: cri.PodSandboxConfig, profile: str, image: str) -> None:
    config = cri.ContainerConfig(image=cri.ImageSpec(image=image))
    config.metadata.name = "main"
    seccomp = config.linux.security_context.seccomp
    seccomp.profile_type, seccomp.localhost_ref = cri.SecurityProfile.Localhost, profile
    request = cri.CreateContainerRequest(pod_sandbox_id=pod, config=config, sandbox_config=sandbox)
    await client.runtime.CreateContainer(request, timeout=60)


async def test_a_silent_file_server_holds_up_its_own_pods_alone(
    node: CriNode, silent: SilentServer, tmp_path: Path
) -> None:
    async with pulled(node, tmp_path / "store") as image, node.client() as client:
        mine = await client.run_pod("mine")
        stuck = [
            *(_run(client, _config(f"log{n}", silent.path / f"{n}")) for n in range(20)),
            *(_run(client, _config(f"filter{n}", tmp_path, f"{silent.path}/{n}")) for n in range(20)),
            _create(client, mine.id, mine.config, f"{silent.path}/p", image),
        ]
        waiting = [asyncio.create_task(each) for each in stuck]
        await until(lambda: silent.asked)
        pod = await client.run_pod("honest")
        container = await client.create(pod, image, ["/bin/sh", "-c", "echo hello"])
        await client.start(container)
        for each in waiting:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await each
            assert raised.value.code() is TOO_LATE
            assert str(silent.path) in (raised.value.details() or "")
        # The stuck calls do not keep the daemon from its end.
        await node.daemon.stop()
        await node.daemon.start()
    async with node.client() as client:
        assert set(await client.pods()) == {mine.id, pod.id}
    silent.abort()


async def test_a_pod_waits_for_its_own_calls_and_others_do_not(
    impatient: HostPaths, silent: SilentServer, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        with pytest.raises(TooLate, match=rf"{silent.path}/{name}.* within 0.2 s"):
            await impatient.read("evil", f"{silent.path}/{name}")
    # Both of its processes wait for the server, and cannot be killed.
    with pytest.raises(TooLate, match="earlier calls of the pod or its namespace have not come back"):
        await impatient.make_directory("evil", str(tmp_path / "d"))
    assert not (tmp_path / "d").exists()
    (tmp_path / "f").write_bytes(b"content")
    assert await impatient.read("honest", str(tmp_path / "f")) == b"content"
    silent.abort()
    ended = time.monotonic() + 60
    while True:
        try:
            assert await impatient.read("evil", str(tmp_path / "f")) == b"content"
            break
        except TooLate:
            assert time.monotonic() < ended


async def test_responsive_pods_share_a_lookup_process(paths: HostPaths, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")
    await paths.read("a", str(tmp_path / "f"))
    (first,) = _lookups()
    for owner in "abc":
        await paths.read(owner, str(tmp_path / "f"))
        with pytest.raises(FileNotFoundError):
            await paths.read(owner, str(tmp_path / "none"))
    assert _lookups() == [first]
    os.kill(first, 9)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert await paths.read("a", str(tmp_path / "f")) == b"content"
    paths.close()
    assert _lookups() == []


def _lookups() -> list[int]:
    """Lookup processes of this test process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for task in Path("/proc/self/task").iterdir():
        children += (task / "children").read_text().split()
    names = {int(pid): Path("/proc", pid, "comm").read_text().strip() for pid in children}
    return [pid for pid, name in names.items() if name == "lookup"]


async def test_files_are_read_up_to_a_limit_and_other_kinds_are_refused(
    paths: HostPaths, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(os.urandom(READ_MAX_BYTES + 10))
    (tmp_path / "link").symlink_to("large")
    os.mkfifo(tmp_path / "pipe")
    assert await paths.read("o", str(tmp_path / "empty")) == b""
    whole = (tmp_path / "large").read_bytes()
    assert await paths.read("o", str(tmp_path / "link")) == whole[: READ_MAX_BYTES + 1]
    for name, kind in (("pipe", OSError), (".", IsADirectoryError), ("none", FileNotFoundError)):
        with pytest.raises(kind):
            await paths.read("o", str(tmp_path / name))
    with pytest.raises(OSError, match="not a file|Invalid argument"):
        await paths.read("o", "/dev/zero")


async def test_directories_are_made(paths: HostPaths, tmp_path: Path) -> None:
    await paths.make_directory("o", str(tmp_path / "a/b"))
    await paths.make_directory("o", str(tmp_path / "a/b"))
    assert (tmp_path / "a/b").is_dir()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for path in ("file", "file/below", "dangling"):
        with pytest.raises(OSError):
            await paths.make_directory("o", str(tmp_path / path))


async def test_profiles_and_names_of_the_host(paths: HostPaths, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b" " * (256 * 1024 + 1))
    (tmp_path / "good").write_bytes(b"{}")
    (tmp_path / "link").symlink_to("good")
    assert await host_files.seccomp_profile(paths, POD, str(tmp_path / "link")) == b"{}"
    assert await host_files.seccomp_profile(paths, POD, "") == b""
    for name, fault, words in (
        ("pipe", Invalid, "not a file"),
        ("large", Invalid, "larger than 262144 bytes"),
        ("none", Refused, "No such file"),
        (".", Refused, "a directory"),
    ):
        with pytest.raises(fault, match=words):
            await host_files.seccomp_profile(paths, POD, f"{tmp_path}/{name}")
    pod, resolv = cri.PodSandboxConfig(metadata=POD), tmp_path / "resolv.conf"
    assert await host_files.host_resolv(paths, pod, str(resolv)) == b""
    resolv.write_text("nameserver 9.9.9.9\n")
    assert await host_files.host_resolv(paths, pod, str(resolv)) == b"nameserver 9.9.9.9\n"
    with pytest.raises(Broken, match="Is a directory"):
        await host_files.host_resolv(paths, pod, str(tmp_path))
    pod.dns_config.servers.append("1.1.1.1")
    assert await host_files.host_resolv(paths, pod, str(resolv)) == b""
