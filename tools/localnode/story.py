"""The steps of the demo: pull, run, look inside from every side, remove."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path

import requests

from daemonkit.rpc.channels import channel
from tools.localnode.cri_client import Client, Pod
from tools.localnode.node import LocalNode
from tools.localnode.processes import ProgramFailed
from tools.localnode.screen import Screen
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as protect
from xenpod_proto.protect.v1.protect_pb2_grpc import HostStub, ZonesStub

_PORT = 8080
_SERVE = f"""
echo "hello from $(hostname), pid $$, kernel $(uname -r)"
mkdir -p /srv && echo "served from inside the zone" >/srv/index.html
exec httpd -f -p {_PORT} -h /srv
"""
_MARK = "hello from"
_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.02


async def tell_story(client: Client, node: LocalNode, image: str, screen: Screen) -> None:
    """Run every step; created objects are removed even if a later step fails."""
    async with AsyncExitStack() as undo:
        with screen.step("PullImage") as done:
            reference = await client.pull(image)
            undo.push_async_callback(client.remove_image, image)
            done(image)
        with screen.step("RunPodSandbox: a zone boots") as done:
            pod = await client.run_pod("demo")
            removal = AsyncExitStack()
            removal.push_async_callback(client.remove_pod, pod.id)
            undo.push_async_callback(removal.aclose)
            address = await _address(client, pod)
            done(f"pod {pod.id[:12]}, {address}")
        with screen.step("CreateContainer") as done:
            container = await client.create(pod, reference, ["sh", "-c", _SERVE])
            done(container[:12])
        with screen.step("StartContainer"):
            await client.start(container)
        await _look_inside(client, pod, container, address, screen)
        await _show_isolation(node, pod, screen)
        with screen.step("StopContainer, RemoveContainer"):
            await client.remove_container(container)
        with screen.step("StopPodSandbox, RemovePodSandbox"):
            await removal.aclose()
        with screen.step("RemoveImage"):
            await undo.aclose()


async def _look_inside(client: Client, pod: Pod, container: str, address: str, screen: Screen) -> None:
    """Show the log, the network, an exec, and statistics of the pod."""
    with screen.step("the container's log (CRI format)"):
        log = await _log_with(client.log(pod), _MARK)
    screen.block(log)
    with screen.step(f"HTTP from the host to {address}:{_PORT}"):
        page = await _get(f"http://{address}:{_PORT}/")
    screen.block(page)
    with screen.step("ExecSync: ps, df /"):
        output = await client.exec(container, "sh", "-c", "ps -o pid,args; df -h /")
        if output.exit_code:
            raise ProgramFailed(f"exec ended with {output.exit_code}: {output.stderr[:200]!r}")
    screen.block(output.stdout.decode(errors="replace"))
    with screen.step("ContainerStats") as done:
        request = cri.ContainerStatsRequest(container_id=container)
        stats = (await client.runtime.ContainerStats(request, timeout=_TIMEOUT_SECONDS)).stats
        memory = stats.memory.working_set_bytes.value / 1024
        cpu = stats.cpu.usage_core_nano_seconds.value / 1e6
        done(f"memory {memory:.0f} KiB, CPU {cpu:.0f} ms")


async def _show_isolation(node: LocalNode, pod: Pod, screen: Screen) -> None:
    """Show the zone's facts beside this host's, with the presence of a security boundary."""
    async with channel(node.protect_socket) as link:
        with screen.step("ask the zone what it is"):
            request = protect.ZoneFactsRequest(id=pod.id)
            facts = await ZonesStub(link).ZoneFacts(request, timeout=_TIMEOUT_SECONDS)
            info = await HostStub(link).Info(protect.InfoRequest(), timeout=_TIMEOUT_SECONDS)
    here = os.uname()
    rows = [
        ("kernel", here.release, facts.kernel_release),
        ("pid 1", _read_text("/proc/1/comm"), facts.pid1),
        ("hostname", here.nodename, facts.hostname),
        ("/sys/hypervisor/type", _read_text("/sys/hypervisor/type") or "-", facts.hypervisor_type or "-"),
        ("CPUs", str(os.cpu_count()), str(facts.cpus)),
        ("uptime", f"{_uptime():.0f} s", f"{facts.uptime_ns / 1e9:.0f} s"),
    ]
    screen.table(("", "this host", "the zone"), rows)
    for notice in info.notices if not info.security_boundary else ():
        screen.warn(f"  ! {notice}")


async def _address(client: Client, pod: Pod) -> str:
    request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id)
    status = (await client.runtime.PodSandboxStatus(request, timeout=_TIMEOUT_SECONDS)).status
    if not status.network.ip:
        raise ProgramFailed("the pod has no address")
    return status.network.ip


async def _log_with(path: Path, text: str) -> str:
    """The log once it has ``text``; polled, since protectd writes the file."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        log = await asyncio.to_thread(_read_text, str(path))
        if text in log:
            return log
        await asyncio.sleep(_POLL_SECONDS)
    raise ProgramFailed(f"{path} never said {text!r}")


async def _get(url: str) -> str:
    """Get the page, once the server in the pod listens."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    with requests.Session() as session:
        session.trust_env = False  # no proxy between this host and its own pod
        while True:
            try:
                answer = await asyncio.to_thread(session.get, url, timeout=10)
                answer.raise_for_status()
                return answer.text
            except requests.ConnectionError as error:
                if time.monotonic() >= deadline:
                    raise ProgramFailed(f"GET {url}: {error}") from error
            await asyncio.sleep(_POLL_SECONDS)


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def _uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])
