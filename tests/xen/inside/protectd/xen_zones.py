"""A protectd on libxl with its clients, and the traces of zones in dom0."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio

from tests.support.protect import leftovers
from tests.support.protect.daemons import Protectd
from tests.support.protect.zones import Zones
from tests.support.waiting import until
from xenbind import domain
from xenbind.context import Context
from xenbind.xenstore import Xenstore
from xenpod_proto.protect.v1 import protect_pb2 as pb

PATIENCE = 300.0
MEMORY = 120 << 20
"""Of a zone: the toolstack's minimum with Debian's kernel (112 MiB), and room to grow."""


@asynccontextmanager
async def on_xen(
    folder: Path, image: Path, boot: float = PATIENCE, **settings: object
) -> AsyncIterator[Zones]:
    """A running protectd; its user cleans up. ``boot``: seconds allowed for a boot."""
    protectd = Protectd(folder)
    protectd.configure(
        toolstack="libxl",
        profiles={"default": {"memory": MEMORY, "mode": "pv"}},
        timeouts={"boot": f"{boot:.0f}s", "call": "120s", "reconcile": "2s"},
        scratch={"reserve": 0},  # dom0 has its files in memory
        **settings,
    )
    own_image = Path(shutil.copy(image, folder / "image.squashfs"))
    await protectd.daemon.start()
    try:
        async with protectd.clients() as clients:
            yield Zones(protectd, clients, own_image)
    finally:
        await protectd.daemon.stop()


def domains() -> dict[int, bool]:
    """Each domain except dom0, by number; True if the domain is dying."""
    with Context() as context:
        return {info.domid: info.dying for info in domain.domains(context) if info.domid}


def of_zones(zones: Zones) -> list[str]:
    """All objects of zones in dom0: domains, nodes of xenstore, disks, interfaces, mounts, files."""
    found = [f"domain {domid}{' dying' * dying}" for domid, dying in domains().items()]
    with Xenstore() as store:
        for place in ("/local/domain", "/libxl", "/vm"):
            found += [f"{place}/{name}" for name in store.list(place) if name != "0" and _is_guests(name)]
        for kind in store.list("/local/domain/0/backend"):
            found += [f"backend {kind} {name}" for name in store.list(f"/local/domain/0/backend/{kind}")]
    found += [name for name in os.listdir("/sys/class/net") if name.startswith("vif")]
    found += leftovers.loops(zones.folder) + leftovers.mounts(zones.folder)
    found += leftovers.files(zones.protectd.run_dir)
    return found + [f"log {path}" for path in Path("/var/log/xen/console").glob("guest-*")]


def _is_guests(name: str) -> bool:
    return name != "00000000-0000-0000-0000-000000000000"  # dom0's own, in /vm


async def nothing_left(zones: Zones) -> None:
    """Wait until no zone has an object: the kernel frees devices in its own time."""

    async def gone() -> bool:
        return not await asyncio.to_thread(of_zones, zones)

    def left() -> str:
        return f"left behind: {of_zones(zones)}\n{zones.protectd.daemon.tail()}"

    await until(gone, PATIENCE, left)


async def listed(zones: Zones) -> dict[str, pb.Zone]:
    answer = await zones.clients.zones.ListZones(pb.ListZonesRequest(), timeout=PATIENCE, wait_for_ready=True)
    return {zone.id: zone for zone in answer.zones}


async def settled(zones: Zones, *ids: str) -> None:
    """Wait until exactly the given zones exist, all connected."""

    async def connected() -> bool:
        found = await listed(zones)
        return found.keys() == set(ids) and all(zone.channel_connected for zone in found.values())

    await until(connected, PATIENCE)


async def create(zones: Zones, zone_id: str, **more: object) -> pb.Zone:
    request = pb.CreateZoneRequest(id=zone_id, name="web", **more)  # type: ignore[arg-type]
    return await zones.clients.zones.CreateZone(request, timeout=PATIENCE)


async def destroy(zones: Zones, zone_id: str) -> None:
    await zones.clients.zones.DestroyZone(pb.DestroyZoneRequest(id=zone_id), timeout=PATIENCE)


async def refused(call: grpc.aio.UnaryUnaryCall[object, object]) -> str:
    """The error of the call."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.details() or ""
    raise AssertionError("it did not fail")


def run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout
