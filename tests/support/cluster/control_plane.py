"""etcd, kube-apiserver, kube-scheduler and kube-controller-manager as processes of a test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.cluster.api import PATIENCE, Api, ApiRefused
from tests.support.cluster.programs import etcd, free_ports, program
from tests.support.waiting import until
from tools.localnode.processes import Output, ProgramFailed, background

LOOPBACK = "127.0.0.1"


@dataclass
class Serving:
    """An API server: its client, a kubeconfig, and the key that signs tokens of service accounts."""

    api: Api
    kubeconfig: Path
    key: Path
    folder: Path
    running: contextlib.AsyncExitStack

    async def run(self, name: str, *command: str) -> tuple[Process, Output]:
        """Run a program; the program ends before the API server."""
        output = Output(self.folder / f"{name}.log")
        return await self.running.enter_async_context(background(*command, output=output)), output

    async def schedule(self, *flags: str) -> None:
        """Run the scheduler."""
        await self.run("kube-scheduler", program("kube-scheduler"), *self.follows, *flags)

    @property
    def follows(self) -> tuple[str, ...]:
        """Flags of programs that follow the API server."""
        return (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0")


@contextlib.asynccontextmanager
async def api_server(
    folder: Path, *flags: str, authorization: str = "AlwaysAllow", address: str = LOOPBACK
) -> AsyncIterator[Serving]:
    """Serve only the API while the block runs, without controllers.  ``folder`` holds all files.

    ``flags`` come last, and override the flags of all tests.
    """
    folder.mkdir(parents=True)
    clients, peers, port = free_ports(3)
    api = Api(port, secrets.token_hex(16), address)
    key, tokens, kubeconfig = folder / "accounts.key", folder / "tokens.csv", folder / "kubeconfig"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens.write_text(f'{api.token},admin,1,"system:masters"\n')
    kubeconfig.write_text(json.dumps(_kubeconfig(api)))
    async with contextlib.AsyncExitStack() as running:
        serving = Serving(api, kubeconfig, key, folder, running)
        started = await serving.run("etcd", *etcd(folder / "etcd", clients, peers))
        await _until_ready(lambda: _listens(clients), *started)
        command = (
            *_apiserver(folder, clients, api, key, tokens),
            f"--authorization-mode={authorization}",
            *flags,
        )
        started = await serving.run("kube-apiserver", *command)
        await _until_ready(lambda: _ready(api), *started)
        yield serving


@contextlib.asynccontextmanager
async def control_plane(
    folder: Path, *flags: str, authorization: str = "AlwaysAllow", address: str = LOOPBACK
) -> AsyncIterator[tuple[Api, Path]]:
    """Serve while the block runs: a client, and a kubeconfig for the kubelet.  See ``api_server``."""
    async with api_server(folder, *flags, authorization=authorization, address=address) as serving:
        await serving.schedule()
        await serving.run(
            "kube-controller-manager",
            *(program("kube-controller-manager"), *serving.follows),
            f"--service-account-private-key-file={serving.key}",
            f"--root-ca-file={_certificates(folder) / 'apiserver.crt'}",  # for pods that call the API server
        )
        # A pod is refused until its namespace has this account.
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        await serving.api.until(accounts, "metadata.name=default", lambda _: True)
        yield serving.api, serving.kubeconfig


def _apiserver(folder: Path, etcd_port: int, api: Api, key: Path, tokens: Path) -> list[str]:
    return [
        program("kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        *(f"--bind-address={api.host}", f"--secure-port={api.port}", f"--cert-dir={_certificates(folder)}"),
        *(f"--token-auth-file={tokens}", "--allow-privileged"),
        *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=198.51.100.0/24",
        # For logs and exec.  On loopback the node is called localhost: a kubelet's address is never loopback.
        f"--kubelet-preferred-address-types={'Hostname' if api.host == LOOPBACK else 'InternalIP'}",
    ]


def _certificates(folder: Path) -> Path:
    return folder / "certificates"


def _kubeconfig(api: Api) -> dict[str, object]:
    cluster = {"server": api.url, "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": api.token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }


async def _until_ready(condition: Callable[[], Awaitable[bool]], process: Process, output: Output) -> None:
    """Wait for the condition.  ProgramFailed: the process ends first, or takes too long."""
    name = output.path.stem

    async def holds() -> bool:
        if process.returncode is not None:
            raise ProgramFailed(f"{name} ended with {process.returncode}:\n{output.tail()}")
        return await condition()

    try:
        await until(holds, PATIENCE)
    except TimeoutError:
        raise ProgramFailed(f"{name} is not ready after {PATIENCE:.0f} s:\n{output.tail()}") from None


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True


async def _ready(api: Api) -> bool:
    try:
        return await api.text("GET", "/readyz") == "ok"
    except (ApiRefused, OSError):
        return False
