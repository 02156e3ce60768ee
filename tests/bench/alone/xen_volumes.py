"""Cost of volumes on Xen: a zone's start with and without a volume, and the speed of a volume.

Run inside a Xen dom0, or from anywhere by ``python -m tests.bench.alone.xen_volumes --nested``, which boots a
dom0 in QEMU. Each step is compared with the same step in the zone's own memory.  The ratio is more reliable
than seconds on a machine with other work.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from protect.host import mounts
from protect.model.toolstack import DiskSpec
from protect.volumes.area import Area
from tests.support.images import busybox
from tests.support.protect.stage import Agent, LibxlStage
from tests.xen import nested

_DEADLINE = 2400.0
_WORK = {
    "write 16 MiB": "dd if=/dev/zero of={at}/big bs=1M count=16 conv=fsync 2>/dev/null",
    "read 16 MiB": "dd if={at}/big of=/dev/null bs=1M 2>/dev/null",
    "make 100 files": "i=0; while [ $i -lt 100 ]; do : > {at}/f$i; i=$((i+1)); done",
    "list them": "ls -l {at} >/dev/null",
    "remove them": "rm {at}/f*",
}
_VOLUME = busybox.bind("/run/xenpod/shared/w/0", "/v", "rbind", "rprivate", "rw")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.alone.xen_volumes", description=__doc__)
    parser.add_argument("--nested", action="store_true", help="boot Xen in QEMU, and measure there")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.nested:
        return _nested(arguments.rounds)
    with tempfile.TemporaryDirectory(prefix="xenpod-bench-") as folder:
        asyncio.run(_measure(Path(folder), arguments.rounds))
    return 0


def _nested(rounds: int) -> int:
    return nested.run_module("tests.bench.alone.xen_volumes", "--rounds", str(rounds), deadline=_DEADLINE)


async def _measure(folder: Path, rounds: int) -> None:
    image = busybox.build(folder / "image.squashfs", folder / "scratch")
    area = Area(folder / "volumes/z")
    area.make()
    stage = LibxlStage(folder / "stage")
    stage.folder.mkdir()
    await stage.open()
    try:
        _show(area, folder)
        bare, shared = [], []
        for _ in range(rounds):
            bare.append(await _timed(_start(stage, image, None)))
            shared.append(await _timed(_start(stage, image, area)))
        agent = await _start(stage, image, area)
        _line("start without a volume", statistics.median(bare))
        _line("start with one", statistics.median(shared), statistics.median(bare))
        _line("pages that dom0 has mapped", _grants(agent))
        for number, (name, script) in enumerate(_WORK.items()):
            inside = await _timed(_run(agent, script.format(at="/m"), f"m{number}"))
            there = await _timed(_run(agent, script.format(at="/v"), f"v{number}"))
            _line(name, there, inside)
    finally:
        await stage.close()
        area.remove()


def _show(area: Area, folder: Path) -> None:
    source = folder / "source"
    source.mkdir()
    tree = mounts.clone(source, recursive=True)
    mounts.change(tree, propagation=mounts.MS_PRIVATE, recursive=True)
    area.attach("w", "0", tree, directory=True)
    os.close(tree)


async def _start(stage: LibxlStage, image: Path, area: Area | None) -> Agent:
    """From nothing to the end of a first container."""
    agent = await stage.boot(shared=area.namespace if area else None)
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvda", image))
    if area:
        await _mount(stage, agent)
    code, said = await agent.run(
        "first", "xvda", "ls", "/v" if area else "/", mounts=[_VOLUME] if area else []
    )
    assert code == 0, said
    return agent


async def _mount(stage: LibxlStage, agent: Agent) -> None:
    from xenpod_proto.channel.v1 import channel_pb2 as pb

    session = await stage.toolstack.share(agent.domain)
    await agent.call(mount_shared=pb.MountShared(session=session))


async def _run(agent: Agent, script: str, name: str) -> None:
    code, said = await agent.run(name, "xvda", "sh", "-c", script, mounts=[_VOLUME, _MEMORY_SHARED])
    assert code == 0, said


_MEMORY_SHARED = busybox.bind("/tmp", "/m", "rbind")
"""The zone's own /tmp, which outlives a container like the volume."""


async def _timed(work: Awaitable[Any]) -> float:
    begun = time.monotonic()
    await work
    return time.monotonic() - begun


def _grants(agent: Agent) -> float:
    subprocess.run(["xl", "dmesg", "--clear"], capture_output=True, check=True)
    subprocess.run(["xl", "debug-keys", "g"], check=True)
    text = subprocess.run(["xl", "dmesg"], capture_output=True, text=True, check=True).stdout
    return float(sum(line.replace("(XEN)", "").strip().startswith("[") for line in text.splitlines()))


def _line(name: str, value: float, beside: float | None = None) -> None:
    ratio = f"   {value / beside:6.2f} times" if beside else ""
    sys.stdout.write(f"{name:32}{value:9.2f}{ratio}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
