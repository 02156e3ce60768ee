"""docs/troubleshooting.md: a test provokes each message of the page, and compares the printed text."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.cri.conformance import SuiteStage, crash_zone, linux, zone_folder
from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.cri.events import Ends
from tests.support.local_run import ROOT
from tools.localnode import images, layers, registry
from tools.localnode.cri_client import Pod
from tools.localnode.images import PushedImage
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]

PAGE = (ROOT / "docs/troubleshooting.md").read_text()
HOST = "registry.test"
_ENTRY = re.compile(r"^### (?P<heading>.+)\n\n```text\n(?P<message>.+)\n```$", re.MULTILINE)
ENTRIES = {match["heading"]: match["message"] for match in _ENTRY.finditer(PAGE)}

Provoke = Callable[[SuiteStage], Awaitable[str]]


def fits(heading: str, said: str) -> bool:
    """Whether this is the message of the entry; ``...`` in the entry stands for anything."""
    pattern = ".*".join(re.escape(part) for part in ENTRIES[heading].split("..."))
    return re.fullmatch(pattern, said.strip(), re.DOTALL) is not None


# -- daemons that do not start, and the command


async def said_by(*command: str) -> tuple[int, str]:
    """Exit status and output of a program of ours that ends by itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, cwd=ROOT,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, out.decode()


async def protectd(folder: Path, **settings: object) -> str:
    """Message of a protectd that fails at its start."""
    node = CriNode(folder)
    node.protectd.configure(**settings)
    status, said = await said_by("protect", "--config", str(node.protectd.daemon.config))
    assert status in (1, 2)
    return said


async def without_a_kernel(folder: Path) -> str:
    return await protectd(folder, toolstack="libxl", guest_dir=str(folder))


async def without_xen(folder: Path) -> str:
    if Path("/proc/xen/capabilities").exists():
        pytest.skip("this machine runs Xen")
    (folder / "any.cpio").touch()
    kernel = max(Path("/boot").glob("vmlinuz-*"))
    return await protectd(
        folder, toolstack="libxl", libxl={"kernel": str(kernel), "initramfs": str(folder / "any.cpio")}
    )


async def twice(folder: Path) -> str:
    node = CriNode(folder)
    await node.protectd.daemon.start()
    try:
        return await protectd(folder)
    finally:
        await node.protectd.daemon.stop()


async def of_a_later_version(folder: Path) -> str:
    node = CriNode(folder)
    await node.protectd.daemon.start()
    await node.protectd.daemon.stop()
    (database,) = folder.rglob("protect.db")
    with contextlib.closing(sqlite3.connect(database)) as opened:
        opened.execute("PRAGMA user_version = 999")
    return await protectd(folder)


async def command_without_daemon(folder: Path) -> str:
    status, said = await said_by("protectctl", "zone", "list", "--socket", str(folder / "none.sock"))
    assert status == 3
    return said


ALONE: dict[str, Callable[[Path], Awaitable[str]]] = {
    "unknown key": lambda folder: protectd(folder, colour=1),
    "key 'guest_dir': No such file or directory": lambda folder: protectd(folder, guest_dir="/nonexistent"),
    "find zone kernel": without_a_kernel,
    "start libxl: does this kernel run on Xen as dom0?": without_xen,
    "another protectd runs on it": twice,
    "its schema is version": of_a_later_version,
    "nobody serves, and exit status 3": command_without_daemon,
}


@pytest.mark.parametrize("heading", ALONE)
async def test_start_errors_are_printed_as_documented(heading: str, tmp_path: Path) -> None:
    said = await ALONE[heading](tmp_path)
    assert fits(heading, said), said


# -- a running node


@contextlib.asynccontextmanager
async def node_with(folder: Path, **settings: object) -> AsyncIterator[SuiteStage]:
    """Both daemons, an image, and a registry; faults for pods by their names."""
    node = CriNode(folder)
    certs = {"certs_dir": str(node.certs)}
    limits = {"limits": {"layers": 2}, "policy": {"deny": [f"{HOST}/secret/*"]}, "retry_delay": "10ms"}
    node.configure(images=certs | limits, handlers={"accelerated": {"requires": ["iommu"]}}, **settings)
    faults = [
        {"at": "unpause", "kind": "die", "name": "*dies*", "times": 9},
        {"at": "open_channel", "kind": "stall", "name": "*silent*", "times": 9},
    ]
    node.protectd.configure(
        fake={"memory": "2GiB"}, memory={"reserve": 0}, timeouts={"boot": "3s"},
        limits={"zones": 2, "execs_per_zone": 1}, faults={"toolstack": {"fault": faults}},
    )  # fmt: skip
    async with registry.serve_registry(folder / "registry") as address:
        images.push(address, "busybox:1", images.busybox())
        extra = [layers.layer(layers.LayerEntry(name)) for name in ("a", "b", "c")]
        images.push(address, "large:1", PushedImage([layers.busybox(), *extra]))
        registry.mirror(node.certs, HOST, address)
        registry.mirror(node.certs, "away.test", "127.0.0.1:1")
        await node.start()
        try:
            async with node.client() as client:
                ends = Ends(client)
                yield SuiteStage(node, client, await client.pull(f"{HOST}/busybox:1"), ends, "fake")
                await ends.close()
        finally:
            await node.close()


async def refusal(call: Awaitable[object]) -> str:
    """The text of crictl and the kubelet for a failed call."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    code = "".join(word.capitalize() for word in failed.value.code().name.split("_"))
    return f"rpc error: code = {code} desc = {failed.value.details()}"


def host_network() -> dict[str, Any]:
    options = cri.NamespaceOption(network=cri.NODE)
    security = cri.LinuxSandboxSecurityContext(namespace_options=options)
    return {"linux": cri.LinuxPodSandboxConfig(security_context=security)}


def memory(gibibytes: int) -> dict[str, Any]:
    resources = cri.LinuxContainerResources(memory_limit_in_bytes=gibibytes << 30)
    return {"linux": cri.LinuxPodSandboxConfig(resources=resources)}


async def one_zone_too_many(stage: SuiteStage) -> str:
    async with stage.pod("one"), stage.pod("two"):
        return await refusal(stage.run_pod("three"))


def container(**fields: Any) -> Provoke:
    """Messages of CreateContainer and StartContainer."""

    async def provoke(stage: SuiteStage) -> str:
        async with stage.pod() as pod:

            async def started() -> None:
                await stage.started(pod, **fields)

            return await refusal(started())

    return provoke


async def socket_of_the_host(stage: SuiteStage) -> str:
    mount = cri.Mount(host_path=str(stage.node.daemon.socket), container_path="/run/cri.sock")
    return await container(mounts=[mount])(stage)


def zone_ends(end: Callable[[CriNode, Pod], None]) -> Provoke:
    """Message of a container of an ended zone."""

    async def provoke(stage: SuiteStage) -> str:
        async with stage.pod() as pod:
            ended = await stage.started(pod)
            end(stage.node, pod)
            status = await stage.ended(ended)
            return f"{status.reason}: {status.message}"

    return provoke


def end_without_a_word(node: CriNode, pod: Pod) -> None:
    """Kill the first process, after the process that would have reported the end."""
    pid = int((zone_folder(node, pod) / "pid").read_text().split()[0])
    status = Path(f"/proc/{pid}/status").read_text()
    monitor = int(status.partition("PPid:")[2].split()[0])
    for one in (monitor, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


async def out_of_memory(stage: SuiteStage) -> str:
    async with stage.pod() as pod:
        limit = linux(cri.LinuxContainerResources(memory_limit_in_bytes=16 << 20))
        script = "x=$(head -c 200m /dev/zero | tr '\\0' x); echo ${#x}"
        status = await stage.ended(await stage.started(pod, script, linux=limit))
        return f"{status.reason}: {status.message}"


async def one_exec_too_many(stage: SuiteStage) -> str:
    async with stage.pod() as pod:
        running = await stage.started(pod, "sleep 1000")
        execs = [asyncio.create_task(stage.client.exec(running, "/bin/sleep", "1000")) for _ in range(2)]
        # The client that found a place does not end.
        ended, others = await asyncio.wait(execs, return_when=asyncio.FIRST_COMPLETED)
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return await refusal(ended.pop())


HUGE = cri.LinuxContainerResources(hugepage_limits=[cri.HugepageLimit(page_size="2MB", limit=2 << 20)])
BOTH_WAYS = cri.Mount(
    host_path="/tmp", container_path="/x", propagation=cri.MountPropagation.PROPAGATION_BIDIRECTIONAL
)
RUNNING: dict[str, Provoke] = {
    "runtime handler: not configured": lambda stage: refusal(stage.run_pod(handler="fast")),
    "this host cannot honour runtime handler": lambda stage: refusal(stage.run_pod(handler="accelerated")),
    "it wants the host's network": lambda stage: refusal(stage.run_pod(**host_network())),
    "ResourceExhausted: reserve memory zone": lambda stage: refusal(stage.run_pod(**memory(3))),
    "ResourceExhausted: as many as limits.zones": one_zone_too_many,
    "MiB of memory are not between": lambda stage: refusal(stage.run_pod(**memory(100))),
    "the annotation is not allowed": lambda stage: refusal(
        stage.run_pod(annotations={"xenpod.dev/vcpus": "2"})
    ),
    "it died": lambda stage: refusal(stage.run_pod("dies")),
    "it does not boot": lambda stage: refusal(stage.run_pod("silent")),
    "a socket of the host is out of a zone's reach": socket_of_the_host,
    "mountPropagation Bidirectional": container(mounts=[BOTH_WAYS]),
    "CDI device of another vendor": container(CDI_devices=[cri.CDIDevice(name="vendor.example/gpu=0")]),
    "zones have no huge pages yet": container(linux=linux(HUGE)),
    "cannot run: executable file not found": container(command=["/no/such/program"]),
    "its zone has as many execs as it may": one_exec_too_many,
    "ZoneAgentCrashed, ZoneKernelPanic": zone_ends(crash_zone),
    "ZoneCrashed": zone_ends(end_without_a_word),
    "OOMKilled": out_of_memory,
    "images.policy": lambda stage: refusal(stage.client.pull(f"{HOST}/secret/image:1")),
    "images.limits": lambda stage: refusal(stage.client.pull(f"{HOST}/large:1")),
    "the registry does not answer": lambda stage: refusal(stage.client.pull("away.test/busybox:1")),
}


async def test_refusals_of_pods_and_images_are_printed_as_documented(tmp_path: Path) -> None:
    wrong = {}
    async with node_with(tmp_path) as stage:
        for heading, provoke in RUNNING.items():
            said = await provoke(stage)
            await stage.tidy()
            if not fits(heading, said):
                wrong[heading] = said
    assert wrong == {}, "\n".join(wrong.values())


# -- conditions


async def condition(stage: SuiteStage, kind: str) -> str:
    """A condition of Status as printed by the kubelet."""
    reply = await stage.runtime.Status(cri.StatusRequest(), wait_for_ready=True)
    (one,) = [one for one in reply.status.conditions if one.type == kind]
    return f"{kind}={str(one.status).lower()} reason:{one.reason} message:{one.message}"


async def no_network(stage: SuiteStage) -> str:
    (file,) = stage.node.conf_dir.iterdir()
    text = file.read_text()
    file.unlink()
    try:
        return await condition(stage, "NetworkReady")
    finally:
        file.write_text(text)


async def no_plugin(stage: SuiteStage) -> str:
    (file,) = stage.node.conf_dir.iterdir()
    text = file.read_text()
    file.write_text(text.replace('"bridge"', '"absent"'))
    try:
        return await condition(stage, "NetworkReady")
    finally:
        file.write_text(text)


async def no_protectd(stage: SuiteStage) -> str:
    await stage.node.protectd.daemon.stop()
    try:
        return await condition(stage, "RuntimeReady")
    finally:
        await stage.node.protectd.daemon.start()


CONDITIONS: dict[str, Provoke] = {
    "NetworkPluginNotReady: no network configuration there": no_network,
    "NetworkPluginNotReady: find CNI plugin": no_plugin,
    "HandlerUnusable": lambda stage: condition(stage, "HandlersReady"),
    "DelegateReady is false": lambda stage: condition(stage, "DelegateReady"),
    "namespaces in cri.toml does not name its namespace": lambda stage: refusal(
        stage.run_pod(handler="runc")
    ),
    "ProtectdNotReady": no_protectd,
}


async def test_conditions_of_a_node(tmp_path: Path) -> None:
    delegate = {"endpoint": f"unix://{tmp_path}/none.sock", "default": "xenpod"}
    wrong = {}
    async with node_with(tmp_path, delegate=delegate) as stage:
        for heading, provoke in CONDITIONS.items():
            if not fits(heading, said := await provoke(stage)):
                wrong[heading] = said
    assert wrong == {}, "\n".join(wrong.values())


def test_every_entry_is_provoked() -> None:
    assert set(ENTRIES) == {*ALONE, *RUNNING, *CONDITIONS}
    assert PAGE.count("\n### ") == len(ENTRIES), "an entry without its message"


def test_changed_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENTRIES, "x", "a ... of ...: b")
    assert (
        fits("x", "a pod of one\nand two: b\n") and not fits("x", "a pod of three: c") and not fits("x", "")
    )
