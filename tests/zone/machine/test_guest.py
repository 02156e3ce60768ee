"""The agent as the first process of a real kernel: its initramfs, a disk, control groups version 2.

QEMU in software emulation, without Xen: the channel is a serial port (zone/check/serialinit.c).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent.oom_ends import ENDS, GROUP_ENDS, HUNGRY, OomEnd
from tests.support.agent.zone import ZONE
from tests.support.agent.zone_client import Client, Closed, Failed
from tests.support.waiting import block_until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.root]

QEMU = "qemu-system-x86_64"
PATIENCE = 120.0
_DRIVE = "if=virtio,format=raw,readonly=on"


def installed_kernel() -> Path:
    """Debian's cloud kernel with its faster boot."""
    kernels = sorted(Path("/boot").glob("vmlinuz-*-cloud-amd64"))
    if not kernels or shutil.which(QEMU) is None:
        pytest.skip("needs qemu-system-x86 and linux-image-cloud-amd64")
    return kernels[-1]


def serial_root(parts: Path, folder: Path) -> Path:
    """The zone's tree, with a program that makes a channel of a serial port."""
    root = folder / "root"
    shutil.copytree(parts / "root", root, symlinks=True)
    shutil.copy(parts / "serialinit", root / "serialinit")
    return root


def _initramfs(parts: Path, kernel: Path, folder: Path) -> Path:
    root = serial_root(parts, folder)
    output = folder / "initramfs.cpio"
    command = [sys.executable, str(ZONE / "initramfs.py"), "--root", str(root), "--output", str(output)]
    command += [
        "--kernel",
        kernel.name.removeprefix("vmlinuz-"),
        "--module",
        "virtio-pci",
        "--module",
        "virtio-blk",
    ]
    subprocess.run(command, check=True)
    return output


class Guest:
    """A QEMU machine with the agent in it, the image as vda, and addons of the kernel as vdb."""

    def __init__(
        self, kernel: Path, initramfs: Path, image: Path, folder: Path, addons: Path | None = None
    ) -> None:
        self.log = folder / "console"
        self.log.touch()
        port = folder / "port"
        arguments = "XENPOD_ZONE=z1 XENPOD_CLOCK=own" + (" XENPOD_ADDONS=vdb" if addons else "")
        disks = [image, addons] if addons else [image]
        self.machine = subprocess.Popen(
            [
                *(QEMU, "-accel", "tcg", "-cpu", "max", "-m", "256", "-display", "none", "-no-reboot"),
                *("-kernel", str(kernel), "-initrd", str(initramfs)),
                *("-append", "console=ttyS0 rdinit=/serialinit panic=-1 loglevel=3 " + arguments),
                *("-serial", f"file:{self.log}", "-serial", f"unix:{port},server=on,wait=off"),
                *(word for disk in disks for word in ("-drive", f"file={disk},{_DRIVE}")),
            ]
        )
        block_until(self._is_up, PATIENCE, self.console)
        self.client = Client(port, patience=PATIENCE)

    def _is_up(self) -> bool:
        assert self.machine.poll() is None, self.console()
        return "zone z1 is up" in self.console()

    def console(self) -> str:
        return self.log.read_text(errors="replace")


@pytest.fixture(scope="module")
def guest(parts: Path, image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    kernel = installed_kernel()
    folder = tmp_path_factory.mktemp("guest")
    guest = Guest(kernel, _initramfs(parts, kernel, folder), image, folder)
    yield guest
    guest.machine.kill()
    guest.machine.wait()


def test_the_boot_begins_with_the_kernel(guest: Guest) -> None:
    assert guest.client.hello is not None
    kernel, *rest = guest.client.hello.steps
    assert kernel.step == pb.STEP_KERNEL and kernel.duration_us > 0
    assert [one.step for one in rest] == [pb.STEP_MOUNTS, pb.STEP_MODULES, pb.STEP_CGROUPS, pb.STEP_DEVICES]
    # The clock began with the kernel: all steps are within the guest's uptime.
    facts = guest.client.call(get_facts=pb.GetFacts()).facts
    assert kernel.ago_us * 1000 <= facts.uptime_ns


def test_facts_describe_the_guest(guest: Guest) -> None:
    facts = guest.client.call(get_facts=pb.GetFacts()).facts
    assert (facts.cgroup, facts.pid1, facts.hostname) == ("v2", "init", "z1")
    assert guest.client.call(get_stats=pb.GetStats()).stats.zone.agent_rss_bytes <= 2 << 20
    assert "agent: mount" not in guest.console() and "agent: enable" not in guest.console()


def test_a_container_runs_on_its_overlay(guest: Guest) -> None:
    client = guest.client
    created = client.start("c1", "sh", "-c", "cat /proc/self/mounts; exit 7", disk="vda")
    assert client.exited("c1").exit_code == 7
    assert client.output(created.stdout_stream).startswith(b"overlay / overlay rw")
    client.delete("c1")
    assert not client.listed()


def test_out_of_memory_of_a_container_is_reported(guest: Guest) -> None:
    client = guest.client
    client.start("c2", "dd", "if=/dev/zero", "of=/dev/null", "bs=60M", "count=1", memory=24 << 20, disk="vda")
    exited = client.exited("c2")
    assert exited.oom_killed and exited.exit_code == 137 and not exited.zone_oom
    client.delete("c2")


def test_out_of_memory_of_the_zone_is_reported(guest: Guest) -> None:
    """The container has no limit: the zone had no free memory."""
    client = guest.client
    client.start("c4", "sh", "-c", HUNGRY, disk="vda")
    exited = client.exited("c4")
    assert exited.oom_killed and exited.zone_oom and exited.exit_code == 137
    client.delete("c4")


@pytest.mark.parametrize(("number", "end"), enumerate(ENDS + GROUP_ENDS), ids=str)
def test_only_an_oom_kill_of_process_1_ends_its_container_by_oom(
    guest: Guest, number: int, end: OomEnd
) -> None:
    # One connection for all tests: the client remembers the ends of earlier containers by name.
    end.check(guest.client, f"oom{number}", disk="vda")


def _ahead(client: Client) -> tuple[float, float]:
    """Seconds between the guest's clock and our steady clock, and the error of the figure."""
    before = time.monotonic()
    reading = client.call(sync_clock=pb.SyncClock()).clock.realtime_ns
    half = (time.monotonic() - before) / 2
    return reading / 1e9 - (before + half), half


def _until_ahead(client: Client, wanted: float, tolerance: float) -> None:
    def arrived() -> bool:
        seen, error = _ahead(client)
        return error < tolerance and abs(seen - wanted) < tolerance

    block_until(arrived, PATIENCE, lambda: (wanted, _ahead(client)))


def test_a_clock_of_its_own_is_stepped(guest: Guest) -> None:
    client = guest.client
    for seconds in (3600, -7200):
        first, _ = _ahead(client)
        reading = client.call(sync_clock=pb.SyncClock(add_ns=seconds * 10**9, step=True)).clock.realtime_ns
        assert reading
        _until_ahead(client, first + seconds, 1.0)
    for no_time in (-(2**62), -(2**63), 2**63 - 1):
        with pytest.raises(Failed) as failed:
            client.call(sync_clock=pb.SyncClock(add_ns=no_time, step=True))
        assert failed.value.code == 3 and failed.value.message.endswith("no such time")


def test_a_clock_of_its_own_is_slewed(guest: Guest) -> None:
    """Never faster than the kernel slews, and to its end."""
    client = guest.client
    first, _ = _ahead(client)
    client.call(sync_clock=pb.SyncClock(add_ns=30_000_000))
    after, error = _ahead(client)
    assert after - first < 0.02 + error, "it was stepped"
    _until_ahead(client, first + 0.03, 0.008)


def test_an_exec_has_a_terminal(guest: Guest) -> None:
    client = guest.client
    client.start("c3", "sleep", "1000", disk="vda", memory=64 << 20)
    created = client.execute("c3", "e1", "sh", "-c", "test -t 0 && echo yes", tty=True)
    assert client.exited("c3", "e1").exit_code == 0
    assert client.output(created.stdout_stream) == b"yes\r\n"
    (stats,) = client.call(get_stats=pb.GetStats()).stats.containers
    assert stats.memory_limit_bytes == 64 << 20 and stats.pids_current == 1
    assert stats.cpu_usage_ns > 0 and stats.memory_working_set_bytes > 0
    everyone = pb.SignalProcess(process=pb.ProcessRef(container_id="c3"), signal=9, all=True)
    client.call(signal_process=everyone)
    assert client.exited("c3").exit_code == 137
    client.delete("c3")


def test_a_zone_powers_off(guest: Guest) -> None:
    guest.client.begin(power_off=pb.PowerOff())
    # The serial port's other end is a process of the guest, and ends with the others.
    with pytest.raises((Closed, TimeoutError)):
        while True:
            guest.client.step()
    assert guest.machine.wait(PATIENCE) == 0
    assert "Kernel panic" not in guest.console()
