"""A private containerd with runc, from Debian or from a folder; all files are in one folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from protect.host import mounts
from tests.support.protect.daemons import Daemon
from tools.localnode import toml
from tools.localnode.cri_client import Client

needs_containerd = pytest.mark.skipif(
    shutil.which("containerd") is None or shutil.which("runc") is None,
    reason="containerd or runc is not installed",
)

_CRI = "io.containerd.grpc.v1.cri"
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a containerd: its images, networks and programs."""

    pause: str
    """Name of the pause image of sandboxes."""
    certs: Path
    """Folder of mirrors, as in ``certs.d``."""
    networks: Path
    """Folder of the CNI configuration."""
    programs: Path | None = None
    """Folder of containerd and its shim; None: the installed programs."""


@dataclass
class Containerd(Daemon):
    """A containerd with the start, stop and kill of our daemons; containers outlive containerd."""

    folder: Path = Path()
    path: str = ""
    """The PATH of its programs."""

    async def _launch(self, environment: Mapping[str, str]) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.launcher,
                *(shutil.which("containerd", path=self.path) or "containerd", "--config", str(self.config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": self.path, **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._running().pid

    def stall(self) -> None:
        """Stop the process: the socket stays, and nobody answers."""
        self._running().send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue after ``stall``."""
        self._running().send_signal(signal.SIGCONT)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Connect to containerd, past xenpod-cri."""
        async with self.channel() as link:
            yield Client(link, self.folder / "pods")

    async def revive(self) -> None:
        """Start or resume containerd after a test's faults."""
        if self.process is None or self.process.returncode is not None:
            await self.start()
        else:
            self.go_on()

    async def close(self) -> None:
        """Remove every pod, stop containerd, and remove the remains of a failed test."""
        if self.process is None:
            return
        await self.revive()
        try:
            async with self.client() as client:
                for pod in await client.pods():
                    await client.remove_pod(pod)
        finally:
            await self.stop()
            for pid in self.shims():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for point in reversed(_mounts_below(self.folder)):
                while mounts.unmount(Path(point)):
                    pass

    def shims(self) -> list[int]:
        """The pids of the shims, one for each pod."""
        found = []
        for path in _PROC.glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if b"shim" in words[0] and os.fsencode(self.socket) in words:
                    found.append(int(path.parent.name))
        return found


def containerd(folder: Path, around: Surroundings) -> Containerd:
    """Configure a containerd without a start; ``folder`` holds all files."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.toml"
    config.write_text(toml.dumps(_settings(folder, around)))
    path = os.pathsep.join([*([str(around.programs)] if around.programs else []), os.environ["PATH"]])
    return Containerd(
        module="containerd",
        config=config,
        socket=folder / "containerd.sock",
        log=folder / "containerd.log",
        folder=folder,
        path=path,
    )


def version(programs: Path | None) -> str:
    """The version, e.g. ``1.6.20~ds1``."""
    program = str(programs / "containerd") if programs else "containerd"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return said[2]


def _settings(folder: Path, around: Surroundings) -> toml.Table:
    return {
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
                "sandbox_image": around.pause,
                "restrict_oom_score_adj": True,
                "disable_apparmor": True,
                "cni": {"bin_dir": "/usr/lib/cni", "conf_dir": str(around.networks)},
                "registry": {"config_path": str(around.certs)},
                "containerd": {
                    "runtimes": {
                        "runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": False}}
                    }
                },
            },
            "io.containerd.internal.v1.opt": {"path": str(folder / "opt")},
        },
    }


def _mounts_below(folder: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{folder}/")]
