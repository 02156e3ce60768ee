"""A private image registry on loopback (Debian's docker-registry), while a block runs."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from tools.localnode.processes import Output, background

_READY = "listening on"
_TIMEOUT_SECONDS = 30.0


@contextlib.asynccontextmanager
async def serve_registry(folder: Path, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Serve a registry with blobs under ``folder`` while the block runs: ``<host>:<port>``."""
    address = f"{host}:{_free_port(host)}"
    config = _configure(folder, address)
    output = Output(folder / "registry.log")
    async with background("docker-registry", "serve", str(config), output=output):
        await output.line_with(_READY, _TIMEOUT_SECONDS)
        yield address


def mirror(certs: Path, host: str, registry: str) -> None:
    """Make ``registry`` the mirror of ``host``, by containerd's ``certs.d/<host>/hosts.toml``."""
    folder = certs / host
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts.toml").write_text(
        f'server = "http://{registry}"\n\n[host."http://{registry}"]\n  capabilities = ["pull", "resolve"]\n'
    )


def _configure(folder: Path, address: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "registry.yml"
    settings = {
        "version": 0.1,
        "log": {"level": "info", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
        "http": {"addr": address},
    }
    config.write_text(json.dumps(settings))  # JSON is YAML too
    return config


def _free_port(host: str) -> int:
    with socket.socket() as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
    return port
