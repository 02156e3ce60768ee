"""Measures the creation of a domain by protectd's toolstack, beside ``xl create`` of the same kernel and
initramfs.

Run inside a Xen dom0, or from anywhere by ``python -m tests.bench.alone.xen_create --nested``, which boots a
dom0 in QEMU. The two take turns, and noise affects both; both end with a paused domain.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from protect.model.toolstack import DomainSpec, Mode
from protect.toolstack.libxl import boot as booting
from protect.toolstack.libxl.boot import command_line
from protect.toolstack.libxl.settings import LibxlSettings
from protect.toolstack.libxl.toolstack import LibxlToolstack
from tests.xen import machine, nested

MIB = 1 << 20
_MEMORY = 128 * MIB
_GUEST = machine.CHECKOUT / "zone" / "build"
_DEADLINE = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.alone.xen_create", description=__doc__)
    parser.add_argument("--nested", action="store_true", help="boot Xen in QEMU, and measure there")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.nested:
        return _nested(arguments.rounds)
    with tempfile.TemporaryDirectory(prefix="xenpod-bench-") as folder:
        for mode in Mode:
            asyncio.run(_compare(Path(folder), mode, arguments.rounds))
    return 0


def _nested(rounds: int) -> int:
    return nested.run_module("tests.bench.alone.xen_create", "--rounds", str(rounds), deadline=_DEADLINE)


async def _compare(folder: Path, mode: Mode, rounds: int) -> None:
    toolstack = LibxlToolstack(folder, _GUEST)
    await toolstack.start()
    boot = booting.find_boot(LibxlSettings(), _GUEST, folder / "kernels")
    ours, theirs = [], []
    try:
        for number in range(rounds + 1):
            created = await _ours(toolstack, mode)
            beside = await asyncio.to_thread(_theirs, folder, boot, mode)
            if number:  # the first of each reads the files into memory
                ours.append(created)
                theirs.append(beside)
    finally:
        await toolstack.close()
    _print(mode, ours, theirs)


async def _ours(toolstack: LibxlToolstack, mode: Mode) -> float:
    uuid = uuid4()
    spec = DomainSpec(uuid, f"bench-{uuid.hex[:8]}", _MEMORY, 1, mode)
    begun = time.monotonic()
    domain = await toolstack.create(spec)
    seconds = time.monotonic() - begun
    await toolstack.destroy(domain)
    return seconds


def _theirs(folder: Path, boot: booting.Boot, mode: Mode) -> float:
    name = f"bench-{uuid4().hex[:8]}"
    config = folder / f"{name}.cfg"
    config.write_text(
        f'name = "{name}"\ntype = "{mode.value}"\nmemory = {_MEMORY // MIB}\nvcpus = 1\n'
        f'kernel = "{boot.kernel}"\nramdisk = "{boot.initramfs}"\ncmdline = "{command_line("quiet", {})}"\n'
    )
    begun = time.monotonic()
    subprocess.run(["xl", "create", "-q", "-p", str(config)], check=True)
    seconds = time.monotonic() - begun
    subprocess.run(["xl", "destroy", name], check=True)
    return seconds


def _print(mode: Mode, ours: list[float], theirs: list[float]) -> None:
    sys.stdout.write(f"{mode.value}: domain creation, {len(ours)} rounds, seconds (p50 / p95 / least)\n")
    for name, values in (("protectd's toolstack", ours), ("xl create", theirs)):
        p50, p95 = statistics.median(values), statistics.quantiles(values, n=20)[-1]
        sys.stdout.write(f"  {name:22} {p50:6.3f} / {p95:6.3f} / {min(values):6.3f}\n")
    sys.stdout.write(f"  ratio of the medians   {statistics.median(ours) / statistics.median(theirs):6.2f}\n")


if __name__ == "__main__":
    sys.exit(main())
