"""Measures a zone's boot, from create to its agent's answer, beside a bare busybox by ``xl create``.

Run inside a Xen dom0, or from anywhere by ``python -m tests.bench.alone.xen_boot --nested``, which boots a
dom0 in QEMU. Both guests have the same kernel, memory and mode, and take turns: noise affects both.  The bare
guest's init reports its start on the console as the end of its boot; our agent's end is its HELLO over the
channel.

The benchmark also prints the memory of kernel, agent and initramfs in a zone, and with ``--smallest`` looks
for the smallest zone that runs a container of busybox.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from daemonkit.faults import Fault
from protect.model.toolstack import DiskSpec, DomainSpec, Mode
from protect.toolstack.libxl import boot as booting
from protect.toolstack.libxl.settings import LibxlSettings
from protect.toolstack.libxl.toolstack import LibxlToolstack
from tests.support.images import busybox
from tests.support.protect.stage import Agent
from tests.support.waiting import block_until
from tests.xen import machine, nested
from tests.xen.images import initramfs
from xenpod_proto.channel.v1 import channel_pb2 as pb

MIB = 1 << 20
_MEMORY = 128 * MIB
_GUEST = machine.CHECKOUT / "zone" / "build"
_DEADLINE = 1500.0
_PATIENCE = 120.0
_TIMES = 3
"""Zones of each size: a too small zone boots now and then."""
_READY = b"bare guest is up"
_INIT = f"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
echo {_READY.decode()} > /dev/console
while :; do /bin/busybox sleep 1000; done
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Folder of the guests' files, and the boot parameters of the zones."""

    folder: Path
    toolstack: LibxlToolstack
    boot: booting.Boot
    bare: Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.alone.xen_boot", description=__doc__)
    parser.add_argument("--nested", action="store_true", help="boot Xen in QEMU, and measure there")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smallest", action="store_true", help="look for the smallest zone, too")
    parser.add_argument("--modes", nargs="+", choices=[mode.value for mode in Mode], default=["pv", "pvh"])
    arguments = parser.parse_args()
    if arguments.nested:
        return _nested([argument for argument in sys.argv[1:] if argument != "--nested"])
    modes = [Mode(mode) for mode in arguments.modes]
    with tempfile.TemporaryDirectory(prefix="xenpod-bench-") as folder:
        asyncio.run(_measure(Path(folder), modes, arguments.rounds, smallest=arguments.smallest))
    return 0


def _nested(arguments: list[str]) -> int:
    return nested.run_module("tests.bench.alone.xen_boot", *arguments, deadline=_DEADLINE)


async def _measure(folder: Path, modes: list[Mode], rounds: int, *, smallest: bool) -> None:
    toolstack = LibxlToolstack(folder / "toolstack", _GUEST)
    await toolstack.start()
    try:
        boot = booting.find_boot(LibxlSettings(), _GUEST, folder / "kernels")
        place = Place(folder, toolstack, boot, _bare_initramfs(folder))
        for mode in modes:
            await _race(place, mode, rounds)
        await _taken(place)
        if smallest:
            await _smallest(place)
    finally:
        await toolstack.close()


async def _race(place: Place, mode: Mode, rounds: int) -> None:
    ours, theirs = [], []
    for number in range(rounds + 1):
        zone, bare = await _zone(place, mode), await asyncio.to_thread(_bare, place, mode)
        if number:  # the first of each reads the files into memory
            ours.append(zone)
            theirs.append(bare)
    sys.stdout.write(
        f"{mode.value}: from create to an answer, {rounds} rounds, seconds (p50 / least / most)\n"
    )
    for name, values in (("zone", ours), ("bare busybox, xl create", theirs)):
        p50 = statistics.median(values)
        sys.stdout.write(f"  {name:24} {p50:6.2f} / {min(values):6.2f} / {max(values):6.2f}\n")
    ratio = statistics.median(ours) / statistics.median(theirs)
    sys.stdout.write(f"  ratio of the medians     {ratio:6.2f}\n")
    sys.stdout.flush()


async def _zone(place: Place, mode: Mode) -> float:
    uuid = uuid4()
    spec = DomainSpec(uuid, f"bench-{uuid.hex[:8]}", _MEMORY, 1, mode)
    begun = time.monotonic()
    domain = await place.toolstack.create(spec)
    await place.toolstack.unpause(domain)
    agent = Agent(place.toolstack, domain)
    await agent.link.open(_PATIENCE)
    seconds = time.monotonic() - begun
    await agent.link.close()
    await place.toolstack.destroy(domain)
    return seconds


def _bare(place: Place, mode: Mode) -> float:
    name = f"bench-{uuid4().hex[:8]}"
    config = place.folder / f"{name}.cfg"
    config.write_text(
        f'name = "{name}"\ntype = "{mode.value}"\nmemory = {_MEMORY // MIB}\nvcpus = 1\n'
        f'kernel = "{place.boot.kernel}"\nramdisk = "{place.bare}"\ncmdline = "console=hvc0 panic=1 quiet"\n'
    )
    console = LibxlSettings().console_dir / f"guest-{name}.log"
    begun = time.monotonic()
    subprocess.run(["xl", "create", "-q", str(config)], check=True)
    block_until(
        lambda: console.exists() and _READY in console.read_bytes(),
        _PATIENCE,
        f"the bare guest does not boot: {console}",
    )
    seconds = time.monotonic() - begun
    subprocess.run(["xl", "destroy", name], check=True)
    console.unlink()
    return seconds


def _bare_initramfs(folder: Path) -> Path:
    """A tree of busybox and its libraries alone; no modules are loaded."""
    root = folder / "bare"
    (root / "bin").mkdir(parents=True)
    shutil.copy(busybox.BUSYBOX, root / "bin/busybox")
    for library in busybox.libraries():
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    (root / "init").write_text(_INIT)
    os.chmod(root / "init", 0o755)
    return initramfs.pack(root, folder / "bare.cpio")


async def _taken(place: Place) -> None:
    """Print the used memory of a zone at its agent's answer."""
    uuid = uuid4()
    spec = DomainSpec(uuid, f"bench-{uuid.hex[:8]}", _MEMORY, 1, Mode.PV)
    domain = await place.toolstack.create(spec)
    await place.toolstack.unpause(domain)
    agent = Agent(place.toolstack, domain)
    await agent.link.open(_PATIENCE)
    zone = (await agent.call(get_stats=pb.GetStats())).stats.zone
    await agent.link.close()
    await place.toolstack.destroy(domain)
    total, available = zone.memory_total_bytes, zone.memory_available_bytes
    sys.stdout.write(
        f"of {_MEMORY / MIB:.0f} MiB, pv: the kernel keeps {(_MEMORY - total) / MIB:.1f} MiB; the agent, its "
        f"initramfs and what the kernel allocates take {(total - available) / MIB:.1f} MiB; "
        f"{available / MIB:.1f} MiB are left for containers\n"
    )
    kernel, unpacked = (path.stat().st_size / MIB for path in (place.boot.kernel, place.boot.initramfs))
    sys.stdout.write(f"  files: kernel {kernel:.1f} MiB, initramfs {unpacked:.1f} MiB\n")
    sys.stdout.flush()


async def _smallest(place: Place) -> None:
    """Print the smallest zone, in steps of 4 MiB, that runs a container of busybox, and the end of the next
    smaller zone.

    ValueError: the largest tried zone does not run the container.
    """
    (place.folder / "scratch").mkdir()
    image = busybox.build(place.folder / "busybox.squashfs", place.folder / "scratch")
    least = 0
    for size in range(_MEMORY // MIB, 40, -4):
        try:
            for _ in range(_TIMES):
                await _runs(place, image, size * MIB)
        except (Fault, TimeoutError) as error:
            sys.stdout.write(f"{size} MiB: {str(error)[:200]}\n")
            break
        least = size
    if not least:
        raise ValueError("no zone ran a container")
    sys.stdout.write(f"the smallest zone that ran busybox {_TIMES} times of {_TIMES}: {least} MiB\n")


async def _runs(place: Place, image: Path, memory: int) -> None:
    uuid = uuid4()
    spec = DomainSpec(uuid, f"bench-{uuid.hex[:8]}", memory, 1, Mode.PV)
    domain = await place.toolstack.create(spec)
    try:
        await place.toolstack.unpause(domain)
        agent = Agent(place.toolstack, domain)
        try:
            async with asyncio.timeout(_PATIENCE):
                await agent.link.open(_PATIENCE)
                await place.toolstack.attach_disk(domain, DiskSpec("xvda", image))
                code, said = await agent.run("one", "xvda", "/bin/echo", "here")
        finally:
            await agent.link.close()
    finally:
        await place.toolstack.destroy(domain)
    if (code, said) != (0, b"here\n"):
        raise TimeoutError(f"the container ended with {code}")


if __name__ == "__main__":
    sys.exit(main())
