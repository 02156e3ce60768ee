"""A real kubelet without an API server: the kubelet runs the pods of a folder, and shows their figures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support.protect.daemons import ROOT, Daemon
from tools.localnode.processes import Output, background

needs_kubelet = pytest.mark.skipif(shutil.which("kubelet") is None, reason="kubelet is not on PATH")
SHIPPED = ROOT / "packaging" / "kubelet" / "10-xenpod.conf"

_LINKS = Path("/var/log/containers")
_READY = "Started kubelet"
_TIMEOUT = 120.0
_LOOPBACK = "127.0.0.1"
# Nothing of the host's: no cgroups for pods, no rules of iptables, every file in the test's folder.
_SETTINGS: Mapping[str, object] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "healthzPort": 0,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": ["none"],
    "evictionHard": {},
    "failCgroupV1": False,
    "failSwapOn": False,
    "fileCheckFrequency": "1s",
    "makeIPTablesUtilChains": False,
}

_NOT_YET = ("unable to find data in memory cache", 'unknown container "/"')
"""Errors of a kubelet that has not read the host's figures yet."""


class KubeletRefused(Exception):
    """The kubelet's server answered with an error; the exception has the text."""


class Runtime(Protocol):
    """A container runtime, with the daemon that serves CRI."""

    @property
    def daemon(self) -> Daemon: ...


@dataclass
class Kubelet:
    """A running kubelet."""

    manifests: Path
    port: int
    process: asyncio.subprocess.Process
    output: Output
    address: str = _LOOPBACK

    async def crash(self) -> None:
        """Kill the kubelet, and wait for its end."""
        self.process.kill()
        await self.process.wait()

    def run(self, name: str, script: str, image: str) -> None:
        """Run a pod of one container, once; the pod's name ends with the node's."""
        container = {
            "name": "main",
            "image": image,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
        }
        spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        (self.manifests / f"{name}.json").write_text(json.dumps(pod))

    async def get(self, path: str) -> str:
        """Get a page of the kubelet's server."""
        return await asyncio.to_thread(self._get, path)

    async def summary(self, name: str) -> dict[str, Any]:
        """The pod's part of /stats/summary; {} while the pod or the host's figures are missing."""
        try:
            found = json.loads(await self.get("/stats/summary"))
        except KubeletRefused as error:
            if not any(early in str(error) for early in _NOT_YET):
                raise
            return {}
        return next((pod for pod in found["pods"] or () if pod["podRef"]["name"].startswith(name)), {})

    def _get(self, path: str) -> str:
        trust = ssl._create_unverified_context()  # noqa: S323  # a self-made certificate
        url = f"https://{self.address}:{self.port}{path}"
        try:
            with urllib.request.urlopen(url, context=trust, timeout=_TIMEOUT) as reply:
                return str(reply.read().decode())
        except urllib.error.HTTPError as error:
            raise KubeletRefused(error.read().decode()) from None


@contextlib.asynccontextmanager
async def kubelet(
    node: Runtime,
    folder: Path,
    *more: str,
    shipped: bool,
    program: str = "kubelet",
    settings: Mapping[str, object] | None = None,
    address: str = _LOOPBACK,
    launcher: Sequence[str] = (),
    ports: Mapping[str, object] | None = None,
) -> AsyncIterator[Kubelet]:
    """Serve while the block runs; ``shipped``: with our shipped configuration beside the kubelet's own.

    ``more``: arguments; ``settings``: of the kubelet's configuration, over the settings here. ``launcher``
    begins the command line: a program that becomes the rest, in whose network ``address`` is. ``ports``:
    addresses and ports of the configuration, instead of one free port at ``address``. In the folder of an
    earlier kubelet the kubelet finds the earlier pods.
    """
    manifests, drop_ins = folder / "manifests", folder / "conf.d"
    listening: Mapping[str, Any] = ports or {"address": address, "port": _free_port()}
    port: int = listening["port"]
    more = more or ("--hostname-override=node",)
    shutil.rmtree(drop_ins, ignore_errors=True)
    drop_ins.mkdir(parents=True)
    manifests.mkdir(exist_ok=True)
    if shipped:
        shutil.copy(SHIPPED, drop_ins)
    own = {
        "containerRuntimeEndpoint": f"unix://{node.daemon.socket}",
        "podLogsDir": str(folder / "logs"),
        **listening,
        "resolvConf": "/dev/null",
        "staticPodPath": str(manifests),
        "volumePluginDir": str(folder / "plugins"),
    }
    (folder / "kubelet.json").write_text(json.dumps({**_SETTINGS, **(settings or {})}))
    # The last drop-in wins: the socket of this test.
    header = {name: _SETTINGS[name] for name in ("apiVersion", "kind")}
    (drop_ins / "90-test.conf").write_text(json.dumps(header | own))
    command = (
        *launcher,
        *(program, f"--config={folder}/kubelet.json", f"--config-dir={drop_ins}"),
        *(
            f"--root-dir={folder}/root",
            f"--cert-dir={folder}/certs",
            *more,
        ),
    )
    output = Output(folder / "kubelet.log")
    try:
        async with background(*command, output=output) as process:
            await output.line_with(_READY, _TIMEOUT)
            async with asyncio.timeout(_TIMEOUT):
                while not await asyncio.to_thread(_listens, address, port):
                    pass
            yield Kubelet(manifests, port, process, output, address)
    finally:
        # The kubelet makes a directory for each container, and removes the directory with the container,
        # which may outlive the kubelet.
        for link in _LINKS.glob("*"):
            if link.is_symlink() and link.readlink().is_relative_to(folder):
                link.unlink()


def _listens(address: str, port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((address, port)) == 0


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((_LOOPBACK, 0))
        port: int = sock.getsockname()[1]
    return port
