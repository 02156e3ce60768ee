"""Rates of disks against a guest with new connections of its disks, and against an honest guest."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from protect.host.disk_rates.threads import BackendThread, BackendThreads
from protect.model.domain.shares import DiskRates
from protect.model.toolstack import DiskSpec, DomainDeath, DomainInfo, ShutdownReason
from tests.contract.conftest import images, stage
from tests.contract.test_toolstack_rates import in_devices
from tests.support.images import busybox
from tests.support.protect.stage import PATIENCE, Agent, Stage, soon
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root
__all__ = ["images", "stage"]

MIB = 1 << 20
RATES = DiskRates(read_bytes=MIB, write_bytes=MIB)
XVDB = "vbd-51728"
"""The guest's xenbus number: 202 << 8 | 16."""
SYSFS: dict[str, object] = {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["rw"]}
STATE = "device/vbd/51728/state"
"""The guest's half of the connection, in the guest's own part of xenstore."""
XS_WRITE = 11
CONNECTED, CLOSED = 4, 6
"""enum xenbus_state, xen/include/public/io/xenbus.h."""


def says(state: int) -> str:
    """A command with which xenstore writes the state of the disk, past the guest's driver."""
    body = f"{STATE}\0{state}".encode()
    message = struct.pack("=IIII", XS_WRITE, 0, 0, len(body)) + body
    octal = "".join(f"\\{byte:03o}" for byte in message)
    return f"printf '{octal}' > /zone/xen/xenbus"


CONNECT_ANEW = (
    f"{says(CLOSED)} && "
    f'until [ "$(cat /sys/bus/xen/devices/{XVDB}/state)" = Closed ]; do sleep 0.1; done && '
    f"{says(CONNECTED)}"
)
"""The driver keeps its rings when their backend closes: a guest with the right state gets new threads for the
rings.

Unbinding and binding the driver is not enough: the driver waits for a new backend, and ours stays closed.
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk.img"
    path.write_bytes(os.urandom(4 * MIB))
    return path


async def booted(stage: Stage, images: tuple[Path, Path], disk: Path) -> tuple[Agent, DomainInfo]:
    """Two vCPUs: each disk has two rings, and two threads if dom0 has as many CPUs."""
    agent = await stage.boot(vcpus=2)
    await stage.toolstack.set_disk_rates(agent.domain, RATES)
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvda", images[0]))
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvdb", disk, readonly=False))
    info = next(info for info in await stage.toolstack.list() if info.id == agent.domain)
    return agent, info


def threads(info: DomainInfo, vdev: str) -> set[int]:
    """Threads of the disk, in any group."""
    found: list[BackendThread] = BackendThreads().look()
    return {thread.pid for thread in found if (thread.domid, thread.vdev) == (info.id, vdev)}


def held(stage: Stage, info: DomainInfo) -> set[int]:
    return set(map(int, (stage.disk_group(info) / "cgroup.procs").read_text().split()))


async def read(agent: Agent, name: str) -> None:
    copy = "dd if=/zone/xvdb of=/dev/null bs=65536 count=16"
    assert await in_devices(agent, name, "xvda", "xvdb", copy) == 0


async def test_a_guest_with_a_reconnected_disk_is_held_and_ended(
    stage: Stage, images: tuple[Path, Path], disk: Path
) -> None:
    agent, info = await booted(stage, images, disk)
    await read(agent, "honest")
    first = threads(info, "xvdb")
    assert first
    await until(lambda: first <= held(stage, info), PATIENCE)
    deaths = stage.toolstack.deaths()
    mounts = [SYSFS, busybox.bind("/dev", "/zone", "bind", "rw")]
    await agent.begin("hostile", "xvda", "sh", "-c", CONNECT_ANEW, mounts=mounts, devices=True)
    assert await soon(anext(deaths)) == DomainDeath(info.uuid, ShutdownReason.RECONNECTED)
    # The guest still lives, and its new threads already have the rates.
    new = threads(info, "xvdb") - first
    assert new and new <= held(stage, info)
    await stage.toolstack.destroy(info.id)
    assert not stage.disk_group(info).exists()


async def test_reattach_and_power_off_of_a_guest_are_no_violation(
    stage: Stage, images: tuple[Path, Path], disk: Path
) -> None:
    """A disk that comes and goes under the same name, and a guest that releases its disks at its end."""
    agent, info = await booted(stage, images, disk)
    deaths = stage.toolstack.deaths()
    for number in range(2):
        await read(agent, f"c{number}")
        mine = threads(info, "xvdb")
        assert mine
        await until(lambda mine=mine: mine <= held(stage, info), PATIENCE)
        await stage.toolstack.detach_disk(agent.domain, "xvdb")
        await until(lambda mine=mine: not mine & held(stage, info), PATIENCE)
        await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvdb", disk, readonly=False))
    await agent.call(power_off=pb.PowerOff())
    assert await soon(anext(deaths)) == DomainDeath(info.uuid, ShutdownReason.POWEROFF)


async def test_after_a_restart_threads_are_held_again(
    stage: Stage, images: tuple[Path, Path], disk: Path
) -> None:
    """Also threads of a disk connected during the daemon's absence; the group was kept."""
    agent, info = await booted(stage, images, disk)
    await read(agent, "before")
    group, mine = stage.disk_group(info), threads(info, "xvdb")
    await until(lambda: mine <= held(stage, info), PATIENCE)
    root = group.parent.parent / "cgroup.procs"
    for pid in mine:
        root.write_text(str(pid))
    await stage.restart()
    assert group.exists()
    await stage.toolstack.set_disk_rates(info.id, RATES)
    assert mine <= held(stage, info)
