"""The other side of the benchmark: a private containerd with runc."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from localnode import network, toml
from localnode.processes import Output, background
from localnode.registry import mirror

_READY = "containerd successfully booted"
_CRI = "io.containerd.grpc.v1.cri"
_PREFIX = 20


@dataclass(frozen=True, slots=True)
class Containerd:
    """A containerd that serves CRI."""

    socket: Path
    pid: int


@contextlib.asynccontextmanager
async def serve(
    folder: Path, registry: str, host: str, pause: str, programs: Path | None
) -> AsyncIterator[Containerd]:
    """Everything under ``folder``; ``host`` is mirrored by ``registry``; ``pause`` is the sandbox image.

    ``programs``: the folder of containerd and its shim; None: those that are installed.
    """
    config = _configure(folder, registry, host, pause)
    output = Output(folder / "containerd.log")
    environment = {"PATH": _path(programs)}
    program = shutil.which("containerd", path=environment["PATH"]) or "containerd"
    async with background(
        program, "--config", str(config), output=output, environment=environment
    ) as process:
        await output.line_with(_READY, 60)
        yield Containerd(folder / "containerd.sock", process.pid)


def version(programs: Path | None) -> str:
    """As it calls itself, e.g. ``1.6.20~ds1``."""
    program = shutil.which("containerd", path=_path(programs)) or "containerd"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return said[2]


def _path(programs: Path | None) -> str:
    """Where containerd, and its shim after it, are looked for."""
    return os.pathsep.join([*([str(programs)] if programs else []), os.environ["PATH"]])


def _configure(folder: Path, registry: str, host: str, pause: str) -> Path:
    folder.mkdir(parents=True)
    bridge = network.bridge_for(str(folder), _PREFIX)
    network.write(folder / "net.d", bridge, folder / "addresses", masquerade=False)
    mirror(folder / "certs.d", host, registry)
    settings = {
        "version": 2,
        "root": str(folder / "root"),
        "state": str(folder / "state"),
        "grpc": {"address": str(folder / "containerd.sock")},
        "ttrpc": {"address": str(folder / "containerd.sock.ttrpc")},
        "disabled_plugins": [
            "io.containerd.snapshotter.v1.aufs",
            "io.containerd.snapshotter.v1.btrfs",
            "io.containerd.snapshotter.v1.devmapper",
            "io.containerd.snapshotter.v1.zfs",
            "io.containerd.tracing.processor.v1.otlp",
            "io.containerd.internal.v1.tracing",
        ],
        "plugins": {
            _CRI: {
                "sandbox_image": pause,
                "restrict_oom_score_adj": True,
                "disable_apparmor": True,
                "cni": {"bin_dir": "/usr/lib/cni", "conf_dir": str(folder / "net.d")},
                "registry": {"config_path": str(folder / "certs.d")},
                "containerd": {
                    "runtimes": {
                        "runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": False}}
                    }
                },
            },
            "io.containerd.internal.v1.opt": {"path": str(folder / "opt")},
        },
    }
    path = folder / "config.toml"
    path.write_text(toml.dumps(settings))
    return path


async def remove(folder: Path) -> None:
    """Delete the bridge; the folder is the caller's."""
    await network.remove(network.bridge_for(str(folder)))
