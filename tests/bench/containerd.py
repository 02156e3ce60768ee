"""The other side of the benchmark: a private containerd with runc, as Debian ships them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from localnode import network, toml
from localnode.processes import Output, background
from localnode.registry import mirror

_READY = "containerd successfully booted"
_CRI = "io.containerd.grpc.v1.cri"


@dataclass(frozen=True, slots=True)
class Containerd:
    """A containerd that serves CRI."""

    socket: Path
    pid: int


@contextlib.asynccontextmanager
async def serve(folder: Path, registry: str, host: str, pause: str) -> AsyncIterator[Containerd]:
    """Everything under ``folder``; ``host`` is mirrored by ``registry``; ``pause`` is the sandbox image."""
    config = _configure(folder, registry, host, pause)
    output = Output(folder / "containerd.log")
    async with background("containerd", "--config", str(config), output=output) as process:
        await output.line_with(_READY, 60)
        yield Containerd(folder / "containerd.sock", process.pid)


def _configure(folder: Path, registry: str, host: str, pause: str) -> Path:
    folder.mkdir(parents=True)
    bridge = network.bridge_for(str(folder))
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
