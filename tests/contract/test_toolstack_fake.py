"""Specifics of the fake toolstack: injected faults, hostile zones, a killed daemon."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from daemonkit.faults import Exhausted, Invalid, Refused, TooLate, Unreachable
from protect.model.errors import DomainGone, ToolstackError
from protect.model.toolstack import Capabilities, DiskSpec, DomainDeath, DomainState, Mode, ShutdownReason
from protect.network.splice import splice
from protect.toolstack.fake import FakeSettings, FakeToolstack, FaultKind, FaultPlan, InjectedFault
from protect.toolstack.fake.domain import write_spec
from protect.toolstack.fake.toolstack import NOTICE
from tests.support.protect.pod_network import PodNetwork
from tests.support.protect.stage import GUEST, PATIENCE, Agent, FakeStage, soon
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or not (GUEST / "fakedom").exists(),
        reason="needs root and the guest parts (make zone)",
    ),
]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[FakeStage]:
    stage = FakeStage(tmp_path)
    await stage.open()
    try:
        yield stage
    finally:
        (stage.run_dir / "faults.toml").unlink(missing_ok=True)
        await stage.close()


def plan(stage: FakeStage, **fault: object) -> None:
    """Write a fault plan of a single row."""
    rows = "\n".join(f"{key} = {json.dumps(value)}" for key, value in fault.items())
    (stage.run_dir / "faults.toml").write_text(f"[[fault]]\n{rows}\n")


# -- facts of the fake


async def test_fake_has_the_capabilities_of_its_settings(tmp_path: Path) -> None:
    stage = FakeStage(tmp_path)
    stage.settings = FakeSettings(hvm=True, hap=True, iommu=True, hypervisor_version="4.17")
    await stage.open()
    try:
        # Rates of disks and NUMA nodes depend on this machine's kernel.
        said = replace(stage.toolstack.capabilities(), disk_rates=False, numa_nodes=0)
        assert said == Capabilities(True, True, True, True, "4.17")
        await stage.create(mode=Mode.PVH)
    finally:
        await stage.close()


async def test_fake_has_the_security_labels_of_its_settings(tmp_path: Path) -> None:
    stage = FakeStage(tmp_path)
    stage.settings = FakeSettings(seclabels=("a:b:c", "a:b:d"))
    await stage.open()
    try:
        assert stage.toolstack.capabilities().flask
        known = [await stage.toolstack.has_seclabel(label) for label in ("a:b:c", "a:b:d", "a:b:e")]
        assert known == [True, True, False]
        await stage.create(seclabel="a:b:d")
        with pytest.raises(Invalid, match="policy lacks the label a:b:e"):
            await stage.create(seclabel="a:b:e")
    finally:
        await stage.close()


async def test_fake_reports_zones_without_a_security_boundary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toolstack = FakeToolstack(tmp_path / "run", GUEST)
    with caplog.at_level(logging.WARNING):
        await toolstack.start()
    info = await toolstack.physical_info()
    await toolstack.close()
    assert NOTICE in caplog.text
    assert not info.security_boundary and info.notices == (NOTICE,)


async def test_second_daemon_on_the_same_run_directory_is_refused(stage: FakeStage) -> None:
    second = FakeToolstack(stage.run_dir, stage.guest_dir)
    with pytest.raises(Refused, match="another daemon"):
        await second.start()


async def test_a_create_without_the_guest_parts_fails(tmp_path: Path) -> None:
    stage = FakeStage(tmp_path)
    stage.guest_dir = tmp_path / "nothing"
    await stage.open()
    with pytest.raises(ToolstackError, match="make zone"):
        await stage.create()
    await stage.close()


async def test_limits_are_the_kernels(stage: FakeStage) -> None:
    info = await stage.create(memory_bytes=80 << 20, vcpus=2)
    group = Path("/proc", str(info.id), "cgroup").read_text()
    assert str(info.uuid) in group
    if (limit := _group(info.uuid, "memory") / "memory.limit_in_bytes").exists():
        assert int(limit.read_text()) == 80 << 20
        assert int((_group(info.uuid, "cpu") / "cpu.cfs_quota_us").read_text()) == 200_000
        assert int((_group(info.uuid, "pids") / "pids.max").read_text()) == FakeSettings().pids_limit
    else:
        assert int((_group(info.uuid, "memory") / "memory.max").read_text()) == 80 << 20


def _group(uuid: object, controller: str) -> Path:
    root = Path("/sys/fs/cgroup")
    return next(iter([*root.glob(f"{controller}/xenpod-*/{uuid}"), *root.glob(f"xenpod-*/{uuid}")]))


# -- faults on purpose


@pytest.mark.parametrize("kind", ["fail", "half"])
async def test_a_failed_create_leaves_nothing(stage: FakeStage, kind: str) -> None:
    plan(stage, at="create", kind=kind)
    wanted = stage.spec(interfaces=1)
    with pytest.raises(ToolstackError, match="injected fault"):
        await stage.toolstack.create(wanted)
    await until(lambda: not stage.leftovers(), PATIENCE, stage.leftovers)
    assert await stage.toolstack.create(wanted) > 0, "the next try, of the same name, succeeds"


async def test_missing_memory_fails_a_create(stage: FakeStage) -> None:
    plan(stage, at="create", kind="exhausted")
    assert (await stage.toolstack.physical_info()).free_memory_bytes == 0
    with pytest.raises(Exhausted):
        await stage.create()
    assert (await stage.toolstack.physical_info()).free_memory_bytes > 0
    await stage.create()


async def test_memory_of_zones_is_counted_and_bounded_by_the_settings(tmp_path: Path) -> None:
    stage = FakeStage(tmp_path)
    stage.settings = FakeSettings(memory=256 << 20)  # type: ignore[arg-type]
    await stage.open()
    made = await asyncio.gather(
        *(stage.create(memory_bytes=100 << 20) for _ in range(4)), return_exceptions=True
    )
    assert sum(isinstance(each, Exhausted) for each in made) == 2
    assert (await stage.toolstack.physical_info()).free_memory_bytes == 56 << 20
    await stage.close()


async def test_a_domain_with_an_early_death_is_reported(stage: FakeStage) -> None:
    plan(stage, at="unpause", kind="die", after_ms=100)
    deaths = stage.toolstack.deaths()
    info = await stage.create()
    await stage.toolstack.unpause(info.id)
    assert await soon(anext(deaths)) == DomainDeath(info.uuid, ShutdownReason.DESTROYED)


async def test_a_stalled_channel_times_out(stage: FakeStage) -> None:
    plan(stage, at="open_channel", kind="stall")
    info = await stage.create()
    await stage.toolstack.unpause(info.id)
    agent = Agent(stage.toolstack, info.id)
    with pytest.raises(TooLate):
        await agent.link.open(0.5)
    await stage.connect(info.id)


async def test_half_attached_disks_are_removed(stage: FakeStage, images: tuple[Path, Path]) -> None:
    info = await stage.create()
    disk = DiskSpec("xvda", images[0])
    plan(stage, at="attach_disk", kind="fail")
    with pytest.raises(ToolstackError):
        await stage.toolstack.attach_disk(info.id, disk)
    assert await stage.toolstack.disks(info.id) == []
    plan(stage, at="attach_disk", kind="half")
    with pytest.raises(ToolstackError):
        await stage.toolstack.attach_disk(info.id, disk)
    assert await stage.toolstack.disks(info.id) == ["xvda"]
    plan(stage, at="detach_disk", kind="half")
    with pytest.raises(ToolstackError):
        await stage.toolstack.detach_disk(info.id, "xvda")
    assert await stage.toolstack.disks(info.id) == []


async def test_a_destroy_by_halves_is_done_again(stage: FakeStage) -> None:
    plan(stage, at="destroy", kind="half")
    info = await stage.create()
    with pytest.raises(ToolstackError):
        await stage.toolstack.destroy(info.id)
    half = await stage.info(info.uuid)
    assert half is not None and half.state is DomainState.SHUTDOWN
    await stage.toolstack.destroy(info.id)
    assert await stage.info(info.uuid) is None


async def test_faults_by_name_and_count(tmp_path: Path) -> None:
    stage = FakeStage(tmp_path)
    stage.faults = FaultPlan((InjectedFault("create", FaultKind.FAIL, name="bad-*", skip=1, times=2),))
    await stage.open()
    made = [await asyncio.gather(stage.create(name=f"bad-{n}"), return_exceptions=True) for n in range(4)]
    assert [isinstance(each[0], ToolstackError) for each in made] == [False, True, True, False]
    await stage.create(name="good")
    await stage.close()


@pytest.mark.parametrize(
    "text", ["[[fault]]\nat = 'create'", "[[fault]]\nat = 'list'\nkind = 'fail'", "nonsense"]
)
async def test_an_invalid_plan_is_refused(stage: FakeStage, text: str) -> None:
    (stage.run_dir / "faults.toml").write_text(text)
    with pytest.raises(Invalid, match="faults.toml"):
        await stage.create()


# -- hostile zones


async def test_a_path_replaced_by_the_zone_is_reclaimed(stage: FakeStage, images: tuple[Path, Path]) -> None:
    agent = await stage.boot()
    dev = Path(f"/proc/{agent.domain}/root/dev")
    (dev / "xvda").symlink_to("/dev/null")
    (dev / "xvdb").write_text("in the way")
    for vdev in ("xvda", "xvdb"):
        await stage.toolstack.attach_disk(agent.domain, DiskSpec(vdev, images[0]))
        assert (await agent.run(vdev, vdev, "cat", "/marker"))[1] == b"one\n"
    (dev / "xvdc").mkdir()
    with pytest.raises(ToolstackError, match="directory"):
        await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvdc", images[0]))
    assert await stage.toolstack.disks(agent.domain) == ["xvda", "xvdb"]


TRICKS = {
    "no file system of its own": "umount('/dev')",
    "its root's own directory": "umount('/dev'); mount('/tmp', '/dev', BIND)",
    "the host's devices": "umount('/dev'); mount('devtmpfs', '/dev', kind='devtmpfs')",
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
async def test_nothing_is_made_outside_the_zones_own_dev(
    stage: FakeStage, images: tuple[Path, Path], trick: str
) -> None:
    info = await stage.create()
    _in_zone(info.id, trick)
    before = os.listdir("/dev")
    with pytest.raises(ToolstackError, match="own"):
        await stage.toolstack.attach_disk(info.id, DiskSpec("xvda", images[0]))
    # If all loop devices are taken, here or by other programs, the kernel makes more.
    assert not [name for name in set(os.listdir("/dev")) - set(before) if not name.startswith("loop")]
    assert await stage.toolstack.disks(info.id) == []


async def test_a_symbolic_link_in_place_of_dev_is_refused(
    stage: FakeStage, images: tuple[Path, Path]
) -> None:
    info = await stage.create()
    _in_zone(
        info.id,
        "mount('tmpfs', '/mnt', kind='tmpfs'); os.mkdir('/mnt/real'); os.symlink('real', '/mnt/dev');"
        "mount('tmpfs', '/mnt/real', kind='tmpfs'); pivot('/mnt')",
    )
    with pytest.raises(ToolstackError, match="symbolic link"):
        await stage.toolstack.attach_disk(info.id, DiskSpec("xvda", images[0]))
    assert await stage.toolstack.disks(info.id) == []


IN_ZONE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
BIND, DETACH = 4096, 2
def check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def mount(source, target, flags=0, kind=None):
    check(libc.mount(source.encode(), target.encode(), kind and kind.encode(), flags, None))
def umount(target):
    check(libc.umount2(target.encode(), DETACH))
def pivot(root):  # moves every process of the namespace whose root is the old one
    os.mkdir(root + "/old")
    check(libc.syscall(155, root.encode(), (root + "/old").encode()))
root = os.open(f"/proc/{sys.argv[1]}/root", os.O_PATH)
mounts = os.open(f"/proc/{sys.argv[1]}/ns/mnt", os.O_RDONLY)
check(libc.setns(mounts, 0x20000))
os.fchdir(root)
os.chroot(".")
exec(sys.argv[2])
"""


def _in_zone(pid: int, trick: str) -> None:
    """Do something as root in the zone's mount namespace, as a hostile agent could."""
    command = [sys.executable, "-c", IN_ZONE, str(pid), trick]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


async def test_a_zone_without_accepts_is_unreachable(stage: FakeStage) -> None:
    info = await stage.create()  # paused: the queue only fills
    held = []
    with pytest.raises(Unreachable):
        for _ in range(100):
            held.append(await stage.toolstack.open_channel(info.id))
    for transport in held:
        await transport.close()


# -- a killed daemon


DAEMON = """
import asyncio, sys
from pathlib import Path
from uuid import UUID
from daemonkit import checkpoints
from protect.toolstack.fake import FakeToolstack
from protect.model.toolstack import DomainSpec

async def main():
    run, guest, uuid, kill_at = sys.argv[1:5]
    toolstack = FakeToolstack(Path(run), Path(guest))
    await toolstack.start()
    checkpoints.arm(kill_at)
    domain = await toolstack.create(DomainSpec(UUID(uuid), "killed", 64 << 20, interfaces=1))
    await toolstack.destroy(domain)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("step", "there"),
    [
        ("fake-create.written", None),
        ("fake-create.grouped", None),
        ("fake-create.launched", DomainState.PAUSED),
        ("fake-create.wired", DomainState.PAUSED),
        ("fake-destroy.killed", DomainState.SHUTDOWN),
        ("fake-destroy.ungrouped", DomainState.SHUTDOWN),
    ],
)
async def test_killed_at_every_step(stage: FakeStage, step: str, there: DomainState | None) -> None:
    await stage.toolstack.close()
    wanted = stage.spec(interfaces=1)
    command = [sys.executable, "-c", DAEMON, str(stage.run_dir), str(stage.guest_dir), str(wanted.uuid), step]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    await stage.open()
    found = await stage.info(wanted.uuid)
    assert (found.state if found else None) is there
    if found is None:
        await until(lambda: not stage.leftovers(), PATIENCE, stage.leftovers)
    await stage.create(name="killed") if found is None else await stage.toolstack.destroy(found.id)


async def test_an_unmounted_disk_is_gone_after_a_kill(stage: FakeStage, images: tuple[Path, Path]) -> None:
    """Until then the loop device belongs to the daemon alone."""
    agent = await stage.boot()
    for vdev in ("xvda", "xvdb"):
        await stage.toolstack.attach_disk(agent.domain, DiskSpec(vdev, images[0]))
    await agent.begin("c1", "xvda", "sleep", "1000")
    await stage.restart()
    assert await stage.toolstack.disks(agent.domain) == ["xvda"]
    assert not os.path.lexists(f"/proc/{agent.domain}/root/dev/xvdb")
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvdb", images[1]))
    again = await stage.connect(agent.domain)
    assert (await again.run("c2", "xvdb", "cat", "/marker"))[1] == b"two\n"


async def test_a_reused_pid_is_not_taken_for_the_zone(stage: FakeStage) -> None:
    info = await stage.create()
    await stage.toolstack.close()
    pid_file = stage.run_dir / "domains" / str(info.uuid) / "pid"
    pid, starttime = pid_file.read_text().split()
    sleeper = await asyncio.create_subprocess_exec("sleep", "60")
    # clock ticks: the process began a second before
    pid_file.write_text(f"{sleeper.pid} {int(starttime) - 100}\n")
    await stage.open()
    found = await stage.info(info.uuid)
    assert found is not None and found.state is DomainState.SHUTDOWN
    await stage.toolstack.destroy(found.id)
    assert sleeper.returncode is None, "another process was killed"
    sleeper.kill()
    await sleeper.wait()
    await until(lambda: not Path("/proc", pid).exists(), PATIENCE)


async def test_a_hanging_launcher_of_a_dead_daemon_is_killed(stage: FakeStage) -> None:
    await stage.toolstack.close()
    wanted = stage.spec()
    directory = stage.run_dir / "domains" / str(wanted.uuid)
    directory.mkdir()
    write_spec(directory, wanted)
    (stage.run_dir / "domains/readme").touch()
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stage.settings = FakeSettings(launch_seconds=0.2)
        await stage.open()
    (stage.run_dir / "domains/readme").unlink()
    assert await stage.info(wanted.uuid) is None
    await until(lambda: not stage.leftovers(), PATIENCE, stage.leftovers)


@pytest.mark.parametrize("restart", [False, True])
async def test_a_zone_without_its_monitor_still_ends(stage: FakeStage, restart: bool) -> None:
    """The process continues; only its exit code is unknown."""
    agent = await stage.boot()
    info = next(i for i in await stage.toolstack.list() if i.id == agent.domain)
    status = Path(f"/proc/{info.id}/status")
    parent = next(line for line in status.read_text().splitlines() if line.startswith("PPid:"))
    monitor = int(parent.split()[1])
    assert b"fakedom" in Path(f"/proc/{monitor}/cmdline").read_bytes()
    os.kill(monitor, signal.SIGKILL)
    await until(lambda: parent not in status.read_text().splitlines(), PATIENCE)
    if restart:
        await stage.restart()
        agent = await stage.connect(info.id)
    deaths = stage.toolstack.deaths()
    await agent.call(power_off=pb.PowerOff())
    assert await soon(anext(deaths)) == DomainDeath(info.uuid, ShutdownReason.CRASH)
    await stage.toolstack.destroy(info.id)


# -- the interface and its namespaces


async def test_a_veth_goes_with_the_pods_namespace(stage: FakeStage) -> None:
    info = await stage.create(interfaces=1)
    name = await stage.toolstack.host_interface(info.id, 0)
    with PodNetwork() as network:
        await splice(name, network.path, "eth0")
    await until(lambda: name not in os.listdir("/sys/class/net"), PATIENCE)
    with PodNetwork() as network, pytest.raises(Exception, match="no such interface"):
        await splice(name, network.path, "eth0")
    await stage.toolstack.destroy(info.id)


async def test_unpause_of_a_dead_domain_is_an_error(stage: FakeStage) -> None:
    info = await stage.create()
    os.kill(info.id, signal.SIGKILL)
    await until(lambda: not Path("/proc", str(info.id)).exists(), PATIENCE)
    with pytest.raises(DomainGone):
        await stage.toolstack.unpause(info.id)
