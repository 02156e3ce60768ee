"""``protect host overhead``: the host's resources for a zone beside its pod, measured on new zones.

The parts are of one zone: memory of its kernel and agent inside the zone, the hypervisor's memory for its
domain, the host's new processes, and protectd's growth.  xenpod-cri's part is missing, because the measured
zones have no pod.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import re
import secrets
import socket
import struct
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from protectctl import daemons, show
from protectctl.command_errors import CommandFailed
from protectctl.daemons import TIMEOUT_SECONDS
from protectctl.output import structured
from protectctl.usage.values import memory, positive, seconds
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

_MIB = 1 << 20
_MARGIN = 0.1
"""Margin, as a part of the sum, for kernel memory of containers that is charged to no container."""
_STEP_MIB, _STEP_MILLI = 4, 5
_BOOT_SECONDS = 300.0
_PATIENCE_SECONDS, _PAUSE_SECONDS = 30.0, 0.5
"""Time limit for the zones' figures, and the pause between two attempts, in seconds."""
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_RSS = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostUse:
    """Bytes: promised to zones, of protectd, and by pid of the host's processes outside zones."""

    promised: int
    protectd: int
    processes: dict[int, int]


@dataclass(frozen=True, slots=True)
class MeasuredOverhead:
    """Overhead of one zone: bytes by part, and idle CPU in thousandths of one CPU."""

    parts: tuple[tuple[str, int], ...]
    milli_cpu: float

    @property
    def memory_mib(self) -> int:
        """The sum of the parts, with the margin, rounded up."""
        total = sum(size for _, size in self.parts) * (1 + _MARGIN)
        return math.ceil(total / _MIB / _STEP_MIB) * _STEP_MIB

    @property
    def pod_fixed(self) -> dict[str, str]:
        cpu = max(1, math.ceil(self.milli_cpu / _STEP_MILLI)) * _STEP_MILLI
        return {"memory": f"{self.memory_mib}Mi", "cpu": f"{cpu}m"}


def add_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--zones", type=positive, default=4, metavar="N", help="how many to make (default: 4)")
    text = "size of each, such as that of your pods; default: the profile's"
    verb.add_argument("--memory", type=memory, default=0, metavar="SIZE", help=text)
    verb.add_argument("--profile", default="", help='of protectd.toml; default: "default"')
    text = "how long they idle while their CPU time is counted (default: 10)"
    verb.add_argument("--idle", type=seconds, default=10.0, metavar="SECONDS", help=text)


async def overhead(options: argparse.Namespace) -> None:
    """Make zones, measure, and remove the zones again, also after an interruption."""
    async with daemons.zones(options) as zones, daemons.host(options) as host:
        before = await _use(options.socket, host)
        async with AsyncExitStack() as undo:
            made = []
            for _ in range(options.zones):
                request = pb.CreateZoneRequest(
                    id=f"overhead-{secrets.token_hex(6)}",
                    name="protect host overhead",
                    profile=options.profile,
                    resources=pb.ZoneResources(memory_bytes=options.memory),
                )
                undo.push_async_callback(_destroy, zones, request.id)
                made.append(await zones.CreateZone(request, timeout=_BOOT_SECONDS))
            first = await _stats(zones, made)
            await asyncio.sleep(options.idle)
            last = await _stats(zones, made)
            after = await _use(options.socket, host)
    found = measured(made, before, after, first, last)
    parts = [{"part": part, "bytes": size} for part, size in found.parts]
    document = {"zones": len(made), "parts": parts, "podFixed": found.pod_fixed}
    if not structured(options.output, document, names=[found.pod_fixed["memory"]]):
        _show(found)


def measured(
    made: list[pb.Zone],
    before: HostUse,
    after: HostUse,
    first: dict[str, pb.ZoneStatsRow],
    last: dict[str, pb.ZoneStatsRow],
) -> MeasuredOverhead:
    """The average overhead of the zones; a part that shrank during the measurement counts as 0."""
    count = len(made)
    given = sum(zone.resources.memory_bytes for zone in made)
    used = given - sum(row.memory_available_bytes for row in last.values())
    came = sum(size for pid, size in after.processes.items() if pid not in before.processes)
    parts = (
        ("guest kernel and agent", used),
        ("hypervisor: page tables, its own pages", after.promised - before.promised - given),
        ("processes of the host", came),
        ("protectd", after.protectd - before.protectd),
    )
    spent = elapsed = 0
    for zone_id, row in last.items():
        field = "host_cpu_usage_ns" if row.host_cpu_usage_ns else "cpu_usage_ns"
        spent += max(0, getattr(row, field) - getattr(first[zone_id], field))
        elapsed += row.timestamp_ns - first[zone_id].timestamp_ns
    return MeasuredOverhead(
        parts=tuple((part, max(0, size) // count) for part, size in parts),
        milli_cpu=1000 * spent / elapsed if elapsed > 0 else 0.0,
    )


async def _destroy(zones: protect_pb2_grpc.ZonesAsyncStub, zone_id: str) -> None:
    await zones.DestroyZone(pb.DestroyZoneRequest(id=zone_id), timeout=TIMEOUT_SECONDS)


async def _stats(zones: protect_pb2_grpc.ZonesAsyncStub, made: list[pb.Zone]) -> dict[str, pb.ZoneStatsRow]:
    """Read the figures of all zones.  protectd leaves out slow zones: ask again for them."""
    ids = [zone.id for zone in made]
    rows: dict[str, pb.ZoneStatsRow] = {}
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                answer = await zones.ZoneStats(pb.ZoneStatsRequest(ids=ids), timeout=TIMEOUT_SECONDS)
                rows = {row.zone_id: row for row in answer.rows}
                if rows.keys() == set(ids):
                    return rows
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        silent = ", ".join(sorted(set(ids) - rows.keys()))
        raise CommandFailed(f"zones do not say what they use: {silent}") from None


async def _use(protectd: Path, host: protect_pb2_grpc.HostAsyncStub) -> HostUse:
    info = await host.Info(pb.InfoRequest(), timeout=TIMEOUT_SECONDS)
    rss = await asyncio.to_thread(_resident, _peer(protectd))
    return HostUse(info.memory.reserved_bytes, rss, await asyncio.to_thread(_processes))


def _peer(path: Path) -> int:
    """The pid of the process that serves a socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def _resident(pid: int) -> int:
    found = _RSS.search(Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) << 10 if found else 0


def _processes() -> dict[int, int]:
    """Proportional memory of the processes in this host's own pid namespace, without this process."""
    own, sizes = os.readlink("/proc/self/ns/pid"), dict[int, int]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # ended, or another user's
            if int(process.name) != os.getpid() and os.readlink(process / "ns/pid") == own:
                found = _PSS.search((process / "smaps_rollup").read_text())
                sizes[int(process.name)] = int(found[1]) << 10 if found else 0
    return sizes


def _show(found: MeasuredOverhead) -> None:
    rows = [(part, f"{size / _MIB:.1f} MiB") for part, size in found.parts]
    total = sum(size for _, size in found.parts)
    rows += [("margin", f"{total * _MARGIN / _MIB:.1f} MiB"), ("idle CPU", f"{found.milli_cpu:.1f}m")]
    show.table(("PART OF ONE ZONE", "TAKES"), rows)
    fixed = found.pod_fixed
    sys.stdout.write(f"\noverhead:\n  podFixed:\n    memory: {fixed['memory']}\n    cpu: {fixed['cpu']}\n")
    words = " ".join(f"--overhead {resource}={amount}" for resource, amount in fixed.items())
    show.note(f"for a class: protect generate classes {words}")
