"""A protectd of a test with its clients, in the words of the tests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

from tests.support.images import busybox
from tests.support.protect import leftovers
from tests.support.protect.daemons import GUEST, Clients, Protectd
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

needs_protectd = pytest.mark.skipif(
    os.geteuid() != 0 or not (GUEST / "fakedom").exists() or not (GUEST / "root/init").exists(),
    reason="needs root and the guest parts (make zone)",
)
TIMEOUT = 60.0
Output = tuple[bytes, bytes, int]


def stack(*paths: Path | str, type: str = "squashfs") -> list[pb.Filesystem]:
    """The lowest first."""
    return [pb.Filesystem(path=str(path), type=type) for path in paths]


@dataclass
class Zones:
    """A running protectd, and actions of tests."""

    protectd: Protectd
    clients: Clients
    image: Path

    @property
    def folder(self) -> Path:
        return self.protectd.folder

    async def create_zone(self, zone_id: str = "z1", **more: object) -> pb.Zone:
        request = pb.CreateZoneRequest(id=zone_id, name="web", **more)  # type: ignore[arg-type]
        return await self.clients.zones.CreateZone(request, timeout=TIMEOUT)

    async def destroy_zone(self, zone_id: str = "z1") -> None:
        await self.clients.zones.DestroyZone(pb.DestroyZoneRequest(id=zone_id), timeout=TIMEOUT)

    def request(
        self, args: Sequence[str], workload_id: str = "w1", zone_id: str = "z1", **more: object
    ) -> pb.CreateWorkloadRequest:
        values: dict[str, object] = {
            "zone_id": zone_id,
            "id": workload_id,
            "oci_config": busybox.config(workload_id, args, tty=bool(more.get("tty"))),
            "filesystems": stack(self.image),
            "log_path": str(self.log(workload_id)),
        }
        return pb.CreateWorkloadRequest(**(values | more))  # type: ignore[arg-type]

    def log(self, workload_id: str = "w1") -> Path:
        return self.folder / f"{workload_id}.log"

    def lines(self, workload_id: str = "w1") -> list[str]:
        """``stdout F text`` of each line in the log."""
        return [line.split(" ", 1)[1] for line in self.log(workload_id).read_text().splitlines()]

    async def create(self, args: Sequence[str], workload_id: str = "w1", **more: object) -> pb.Workload:
        request = self.request(args, workload_id, **more)  # type: ignore[arg-type]
        return await self.clients.workloads.CreateWorkload(request, timeout=TIMEOUT)

    async def start(self, workload_id: str = "w1") -> pb.Workload:
        request = pb.StartWorkloadRequest(id=workload_id)
        return await self.clients.workloads.StartWorkload(request, timeout=TIMEOUT)

    async def run(self, *args: str, workload_id: str = "w1", **more: object) -> pb.Workload:
        """Create and start."""
        await self.create(args, workload_id, **more)
        return await self.start(workload_id)

    async def wait(self, workload_id: str = "w1") -> pb.Workload:
        request = pb.WaitWorkloadRequest(id=workload_id)
        return await self.clients.workloads.WaitWorkload(request, timeout=TIMEOUT)

    async def delete(self, workload_id: str = "w1") -> None:
        request = pb.DeleteWorkloadRequest(id=workload_id)
        await self.clients.workloads.DeleteWorkload(request, timeout=TIMEOUT)

    async def get(self, workload_id: str = "w1") -> pb.Workload:
        request = pb.GetWorkloadRequest(id=workload_id)
        return await self.clients.workloads.GetWorkload(request, timeout=TIMEOUT)

    async def signal(self, number: int, workload_id: str = "w1") -> None:
        request = pb.SignalWorkloadRequest(id=workload_id, signal=number)
        await self.clients.workloads.SignalWorkload(request, timeout=TIMEOUT)

    async def exec(
        self, *args: str, workload_id: str = "w1", stdin: bytes | None = None, timeout: float = 0
    ) -> Output:
        """stdout, stderr and exit code."""
        start = pb.ExecStart(
            workload_id=workload_id,
            process=json.dumps(busybox.process(*args)).encode(),
            stdin=stdin is not None,
            timeout_ns=int(timeout * 1e9),
        )
        inputs = [pb.ExecInput(start=start)]
        if stdin is not None:
            inputs += [pb.ExecInput(stdin=stdin), pb.ExecInput(stdin_eof=True)]
        return await collected(self.clients.workloads.Exec(iter(inputs), timeout=TIMEOUT))

    def said(self) -> str:
        """The last output of protectd and the zones."""
        consoles = (self.protectd.run_dir / "fake/domains").glob("*/console.log")
        texts = [f"{path.parent.name}:\n{path.read_text(errors='replace')[-2000:]}" for path in consoles]
        return "\n".join([self.protectd.daemon.tail(), *texts])

    def left(self) -> list[str]:
        return leftovers.of(self.folder, self.protectd.run_dir)

    async def nothing_left(self) -> None:
        """No domain, loop, mount, group, process, file; waits a little for the kernel."""
        await until(lambda: not self.left(), what=self.left)

    async def tidy(self) -> None:
        """Destroy all zones, remove their logs; protectd runs afterwards, without faults."""
        daemon = self.protectd.daemon
        if self.protectd.settings.get("faults") and daemon.process is not None:
            if daemon.process.returncode is None:
                await daemon.stop()
            self.protectd.configure(faults={})
        if daemon.process is None or daemon.process.returncode is not None:
            await daemon.start()
        listed = self.clients.zones.ListZones(pb.ListZonesRequest(), timeout=TIMEOUT, wait_for_ready=True)
        await asyncio.gather(*(self.destroy_zone(zone.id) for zone in (await listed).zones))
        await self.nothing_left()
        for log in self.folder.glob("*.log"):
            if log != daemon.log:
                log.unlink()


async def collected(call: AsyncIterable[pb.ExecOutput]) -> Output:
    """Everything an Exec or Attach gives."""
    stdout, stderr, code = bytearray(), bytearray(), -1
    async for output in call:
        stdout += output.stdout
        stderr += output.stderr
        if output.HasField("exit"):
            code = output.exit.exit_code
    return bytes(stdout), bytes(stderr), code


@asynccontextmanager
async def serving(folder: Path, image: Path, **settings: object) -> AsyncIterator[Zones]:
    """A protectd that is stopped in the end, with every zone destroyed and nothing left."""
    protectd = Protectd(folder, settings=dict(settings))
    # A copy for this folder alone: loop devices on the copy are this test's.
    own_image = Path(shutil.copy(image, folder / "image.squashfs"))
    await protectd.daemon.start()
    try:
        async with protectd.clients() as clients:
            zones = Zones(protectd, clients, own_image)
            try:
                yield zones
            finally:
                # For whoever looks at a failure: the consoles go with their zones.
                (folder / "said.txt").write_text(zones.said())
                await zones.tidy()
    finally:
        await protectd.daemon.stop()


@asynccontextmanager
async def failing(code: grpc.StatusCode) -> AsyncIterator[list[str]]:
    """The block must fail with this status; the list gets the text."""
    said: list[str] = []
    try:
        yield said
    except grpc.aio.AioRpcError as error:
        assert error.code() is code, f"{error.code()}: {error.details()}"
        said.append(error.details() or "")
    else:
        raise AssertionError(f"it did not fail with {code}")
