"""A real node of a test's own: protectd on the fake toolstack, xenpod-cri, CNI, a bridge, a registry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protect.host import mounts
from tests.support.protect.daemons import GUEST, ROOT, Daemon, Protectd, toml
from tests.support.waiting import PATIENCE, until
from tools.localnode import images, network, registry
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

CNI_BIN = Path("/usr/lib/cni")
IMAGE = "registry.test/busybox:1"

needs_node = pytest.mark.skipif(
    os.geteuid() != 0
    or not (GUEST / "fakedom").exists()
    or not (CNI_BIN / "bridge").exists()
    or shutil.which("docker-registry") is None,
    reason="needs root, the guest parts (make zone), the CNI plugins and docker-registry",
)


@dataclass
class CriNode:
    """Both daemons, started and stopped by the test; every name in the kernel is this folder's own."""

    folder: Path
    settings: dict[str, object] = field(default_factory=dict)
    checkout: Path = ROOT
    """The checkout whose daemons run."""

    def __post_init__(self) -> None:
        self.protectd = Protectd(self.folder / "p", checkout=self.checkout)
        self.bridge = network.bridge_for(str(self.folder))
        self.addresses = self.folder / "addresses"
        self.conf_dir = self.folder / "net.d"
        self.netns_dir = self.folder / "netns"
        self.certs = self.folder / "certs.d"
        self.logs = self.folder / "logs"
        self.run_dir = self.folder / "c"
        self.daemon = Daemon(
            module="cri",
            config=self.folder / "cri.toml",
            socket=self.run_dir / "cri.sock",
            log=self.folder / "cri.log",
            checkout=self.checkout,
        )
        network.write_conflist(self.conf_dir, self.bridge, self.addresses, masquerade=False)
        self.configure()

    def configure(self, **changes: object) -> None:
        """Write xenpod-cri's configuration; the next start reads the file."""
        self.settings.update(changes)
        guest = self.checkout / "zone" / "build"
        base: dict[str, object] = {
            "run_dir": str(self.run_dir),
            "state_dir": str(self.folder / "state"),
            "protect_socket": str(self.protectd.daemon.socket),
            # An earlier release has neither this key nor the program.
            **({"guest_dir": str(guest)} if (guest / "lookup").exists() else {}),
            "log_level": "debug",
            "cni": {"conf_dir": str(self.conf_dir), "netns_dir": str(self.netns_dir)},
            "images": {"certs_dir": str(self.certs)},
        }
        self.daemon.config.write_text(toml(base | self.settings))

    async def start(self) -> None:
        await self.protectd.daemon.start()
        await self.daemon.start()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with self.daemon.channel() as link:
            yield Client(link, self.logs)

    async def close(self) -> None:
        """Remove every pod, stop both, remove the bridge; the daemons are started again if need be."""
        try:
            for owner in (self.protectd, self):
                if owner.settings.get("faults") and owner.daemon.process is not None:
                    await owner.daemon.stop()  # without the configured kill on the way
                    owner.configure(faults={})
                if owner.daemon.process is None or owner.daemon.process.returncode is not None:
                    await owner.daemon.start()
            async with self.client() as client:
                for pod in await client.pods():
                    await client.remove_pod(pod)
        finally:
            await self.daemon.stop()
            await self.protectd.daemon.stop()
            await network.remove_bridge(self.bridge)
            unmount_below(self.folder, self.netns_dir)

    def leftovers(self) -> dict[str, list[str]]:
        """Remains of this node's pods, by kind; empty if nothing is left."""
        found = {
            "namespaces": sorted(path.name for path in _entries(self.netns_dir)),
            "addresses": sorted(path.name for path in _leases(self.addresses)),
            "links": self._ports(),
            "locks": sorted(path.name for path in _entries(self.run_dir / "cni")),
            "domains": sorted(path.name for path in _entries(self.protectd.run_dir / "fake" / "domains")),
            "loops": _loops(self.folder),
            "mounts": _mounts(self.folder, self.netns_dir),
            "processes": _processes(self.protectd.folder),
        }
        return {kind: names for kind, names in found.items() if names}

    async def nothing_left(self, seconds: float = PATIENCE) -> None:
        """Wait until nothing is left; the kernel takes its time."""
        await until(lambda: not self.leftovers(), seconds, self.leftovers)

    def _ports(self) -> list[str]:
        ports = Path("/sys/class/net") / self.bridge.name / "brif"
        return sorted(path.name for path in _entries(ports))


def unmount_below(*folders: Path) -> None:
    """Remove the mounts of a failed test, which would stay for good, and the folders with them."""
    for point in reversed(_mounts(*folders)):
        while mounts.unmount(Path(point)):
            pass


def _entries(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())


def _leases(folder: Path) -> Iterator[Path]:
    """host-local: a file for each address, beside files for its own use."""
    for path in folder.rglob("*") if folder.is_dir() else ():
        if path.is_file() and path.name[0].isdigit():
            yield path


def _loops(folder: Path) -> list[str]:
    listed = subprocess.run(
        ["losetup", "--json", "--list"], check=True, capture_output=True, text=True
    ).stdout
    devices = json.loads(listed)["loopdevices"] if listed else []
    return [device["name"] for device in devices if str(folder) in (device["back-file"] or "")]


def _mounts(*folders: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if any(point.startswith(str(folder)) for folder in folders)]


def _processes(folder: Path) -> list[str]:
    """The processes whose command line names the folder, except the daemons."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line and "--config" not in line:
                found.append(line)
    return found


@contextlib.asynccontextmanager
async def pulled(node: CriNode, store: Path) -> AsyncIterator[str]:
    """Pull busybox from a private registry; the reference for create."""
    async with registry.serve_registry(store) as address:
        images.push(address, "busybox:1", images.busybox())
        registry.mirror(node.certs, "registry.test", address)
        async with node.client() as client:
            yield await client.pull(IMAGE)


_HARMLESS = ("HostPrepared", "ZoneModePreferred")


def broken(reply: cri.StatusResponse) -> list[cri.RuntimeCondition]:
    """What keeps some or all pods from running.

    The mode of zones, PV on the fake, does not; nor do settings of the host, as they are on nested Xen.
    """
    unmet = [condition for condition in reply.status.conditions if not condition.status]
    return [condition for condition in unmet if condition.type not in _HARMLESS]


async def in_step(client: Client) -> None:
    """Wait, without a deadline, until xenpod-cri is connected to protectd again."""
    while True:
        reply = await client.runtime.Status(cri.StatusRequest(), wait_for_ready=True)
        if not broken(reply):
            return
        await asyncio.sleep(0.02)


async def container_status(client: Client, container: str) -> cri.ContainerStatus:
    """ContainerStatus."""
    reply: Any = await client.runtime.ContainerStatus(cri.ContainerStatusRequest(container_id=container))
    return reply.status  # type: ignore[no-any-return]
