"""Deaths of real zones, and protectd's reports."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from uuid import uuid4

import grpc
import pytest
import pytest_asyncio

from protect.model.toolstack import DomainSpec, Mode, ShutdownReason
from protect.model.zone import domain_name
from protect.state.death import CONSOLE_BYTES, Death, DeathKind, judge
from protect.toolstack.libxl.settings import LibxlSettings
from protect.toolstack.libxl.toolstack import LibxlToolstack
from tests.support.agent.oom_ends import HUNGRY
from tests.support.agent.zone import BUILD
from tests.support.images import busybox
from tests.support.protect import zones as support
from tests.support.protect.zones import Zones, failing
from tests.support.waiting import until
from tests.xen import machine
from tests.xen.inside.conftest import MIB
from xenbind.xenstore import Xenstore
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE = 300.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def zones(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Zones]:
    """A protectd whose zones accept the crash key of the host."""
    folder = tmp_path_factory.mktemp("deaths")
    image = busybox.build(folder / "busybox.squashfs", folder / "scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(support, "TIMEOUT", PATIENCE)
        async with serving(folder, image, "sysrq_always_enabled", boot=PATIENCE) as made:
            yield made


def serving(
    folder: Path, image: Path, kernel_arguments: str = "", **seconds: float
) -> AbstractAsyncContextManager[Zones]:
    """``seconds``: timeouts."""
    return support.serving(
        folder,
        image,
        toolstack="libxl",
        profiles={"default": {"memory": "128MiB", "mode": "pv"}},
        libxl={"kernel_arguments": f"quiet {kernel_arguments}"},
        timeouts={name: f"{value:.0f}s" for name, value in seconds.items()},
    )


async def _dead(zones: Zones, zone_id: str) -> pb.Zone:
    zone = pb.Zone()

    async def dead() -> bool:
        nonlocal zone
        zone = await zones.clients.zones.GetZone(pb.GetZoneRequest(id=zone_id), timeout=PATIENCE)
        return zone.state == pb.ZONE_STATE_DEAD

    await until(dead, PATIENCE)
    return zone


async def _run(zones: Zones, zone_id: str, *args: str, memory: int = 0) -> None:
    config = busybox.config("w1", args, memory=memory)
    await zones.run(*args, zone_id=zone_id, oci_config=config)


@pytest.mark.parametrize(
    ("command", "mode", "kind", "cause"),
    [
        (
            ("sysrq", "c"),
            pb.ZONE_MODE_PV,
            "KernelPanic",
            "its kernel panicked: sysrq triggered crash",
        ),
        (
            ("sysrq", "c"),
            pb.ZONE_MODE_PVH,
            "KernelPanic",
            "its kernel panicked: sysrq triggered crash",
        ),
        (
            ("destroy", ""),
            pb.ZONE_MODE_PV,
            "Destroyed",
            "its domain was destroyed, and not by protectd",
        ),
    ],
    ids=["panic", "panic-pvh", "destroy"],
)
async def test_kind_of_a_zones_death_is_told(
    zones: Zones, command: tuple[str, str], mode: pb.ZoneMode.ValueType, kind: str, cause: str
) -> None:
    zone = await zones.create_zone("z1", mode=mode)
    await _run(zones, "z1", "/bin/sleep", "1000")
    request = pb.ZoneConsoleRequest(id="z1", lines=1, follow=True)
    followed = zones.clients.zones.ZoneConsole(request, timeout=PATIENCE)
    pieces = aiter(followed)
    assert (await anext(pieces)).data
    verb, key = command
    xl = ["xl", verb, str(zone.domain_id), *key]
    await asyncio.to_thread(subprocess.run, xl, check=True, timeout=60)
    ended = await zones.wait()
    assert (ended.exit_code, ended.reason) == (137, f"Zone{kind}")
    assert ended.message.startswith(f"the zone ended: {cause}\nits console's last lines:\n")
    dead = await _dead(zones, "z1")
    assert (dead.death_kind, dead.death_reason) == (kind, f"{kind}: {cause}")
    assert 0 < len(dead.console.splitlines()) <= 50
    rest = b"".join([piece.data async for piece in pieces])
    if kind == "KernelPanic":
        assert "Kernel panic - not syncing: sysrq triggered crash" in dead.console
        assert b"sysrq triggered crash" in rest
    await zones.delete()
    await zones.destroy_zone("z1")


async def test_memory_of_a_container_and_of_its_zone(zones: Zones) -> None:
    await zones.create_zone("z1")
    for memory, message in (
        (32 * MIB, "it reached its memory limit"),
        (0, "the zone had no memory left; the container's own limit was not reached"),
    ):
        await _run(zones, "z1", "/bin/sh", "-c", HUNGRY, memory=memory)
        ended = await zones.wait()
        assert (ended.reason, ended.message) == ("OOMKilled", message)
        await zones.delete()
    await zones.destroy_zone("z1")


async def test_an_endless_boot_times_out(tmp_path: Path, zones: Zones) -> None:
    """The kernel finds no agent, and stays in the panic."""
    async with serving(tmp_path, zones.image, "rdinit=/none panic=1000000", boot=60) as other:
        async with failing(grpc.StatusCode.DEADLINE_EXCEEDED) as said:
            await other.create_zone("z2")
    assert "it does not boot: no connection within 60 s" in said[0]
    assert "Kernel panic - not syncing: VFS: Unable to mount root fs" in said[0]


async def test_an_unreachable_agent_ends_its_zone(tmp_path: Path, zones: Zones) -> None:
    """The channel's place in xenstore is gone, as after a restart of xenstored."""
    async with serving(tmp_path, zones.image, boot=PATIENCE, silence=5) as other:
        zone = await other.create_zone("z2")
        await _run(other, "z2", "/bin/sleep", "1000")
        await other.protectd.daemon.stop()
        with Xenstore() as store:
            data = f"/local/domain/{zone.domain_id}/data"

            async def is_offered() -> bool:
                """After the place for the next daemon, the agent writes no more."""
                used, offered = (int(store.read(f"{data}/agent-{name}") or 0) for name in ("used", "epoch"))
                return offered > used

            await until(is_offered, PATIENCE)
            store.remove(data)
        await other.protectd.daemon.start()
        ended = await other.wait()
        assert (ended.exit_code, ended.reason) == (137, "ZoneChannelLost")
        assert "its agent could not be reached for 5 s, although its domain runs" in ended.message
        assert (await _dead(other, "z2")).death_kind == "ChannelLost"


async def test_a_shortage_of_memory_is_reported(zones: Zones) -> None:
    """The refusal has both figures, and names the holders of the memory."""
    memory = (await zones.clients.host.Info(pb.InfoRequest(), timeout=PATIENCE)).memory
    async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
        await zones.create_zone("z2", resources=pb.ZoneResources(memory_bytes=memory.total_bytes))
    shown = re.search(r"it needs (\d+) MiB, free are (\d+) MiB of \d+ MiB \(.*dom0 (\d+) MiB", said[0])
    assert shown is not None, said[0]
    needs, free, dom0 = (int(number) * MIB for number in shown.groups())
    assert needs > free and abs(free - memory.free_bytes) < 8 * MIB
    assert abs(dom0 - memory.dom0_bytes) < 8 * MIB
    assert not (await zones.clients.zones.ListZones(pb.ListZonesRequest(), timeout=PATIENCE)).zones


async def _end(toolstack: LibxlToolstack, memory: int, **environment: str) -> Death:
    """The end of a domain booted with these settings."""
    uuid = uuid4()
    spec = DomainSpec(uuid, domain_name("dying", uuid), memory, 1, Mode.PV, environment=environment)
    deaths = toolstack.deaths()
    domain = await toolstack.create(spec)
    try:
        await toolstack.unpause(domain)
        async with asyncio.timeout(PATIENCE):
            death = await anext(deaths)
        assert (death.uuid, death.reason) == (uuid, ShutdownReason.CRASH)
        return judge(death.reason, await toolstack.console(domain, CONSOLE_BYTES))
    finally:
        await toolstack.destroy(domain)


async def test_the_end_of_the_agent_during_the_boot_is_reported(tmp_path: Path) -> None:
    settings = LibxlSettings(kernel=machine.zone_kernel())
    toolstack = LibxlToolstack(tmp_path, BUILD, settings)
    await toolstack.start()
    try:
        ended = await _end(toolstack, 160 * MIB, XENPOD_CHANNEL="nonsense")
        assert (ended.kind, ended.cause) == (DeathKind.AGENT_CRASHED, "its agent ended with exit status 1")
        assert "agent: XENPOD_CHANNEL: nonsense: neither vchan" in ended.console
    finally:
        await toolstack.close()
