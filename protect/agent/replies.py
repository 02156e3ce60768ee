"""Reads values from the agent's untrusted answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import TypeVar

from daemonkit import logs
from protect.model.checks import printable
from protect.model.errors import ProtocolViolation
from protect.model.process import (
    DialedConnection,
    GuestSize,
    ListedProcess,
    ProcessExited,
    ProcessList,
    ProcessName,
    ProcessState,
    Streams,
    ZoneFacts,
)
from protect.model.statistics import InterfaceStats, Pressure, WorkloadStats, ZoneFigures, ZoneStats, plain
from protect.model.volume import GuestDevice
from xenpod_proto.channel.v1 import channel_pb2 as pb

log = logging.getLogger(__name__)

_TEXT_CHARACTERS = 256
_PROCESS_LIMIT = 4096
_MOST_INTERFACES = 32
_MAJORS, _MINORS = (1 << 12) - 1, (1 << 20) - 1
_SKEW_NS = 60 * 10**9
_STATES: Mapping[int, ProcessState] = {
    pb.PROCESS_STATE_CREATED: ProcessState.CREATED,
    pb.PROCESS_STATE_RUNNING: ProcessState.RUNNING,
    pb.PROCESS_STATE_EXITED: ProcessState.EXITED,
}
T = TypeVar("T", WorkloadStats, ZoneFigures)


def streams_of(untrusted: pb.ProcessCreated) -> Streams:
    """The stream numbers of a reply, unchecked."""
    return Streams(untrusted.stdin_stream, untrusted.stdout_stream, untrusted.stderr_stream)


def check_streams(
    zone_id: str, untrusted: Streams, taken: Collection[int], *, tty: bool, stdin: bool
) -> None:
    """Check stream numbers.  ProtocolViolation: not requested, repeated, or in use."""
    numbers = untrusted.all()
    right = (
        bool(untrusted.stdin) == stdin
        and untrusted.stdout != 0
        and (untrusted.stderr == 0) == tty
        and len(set(numbers)) == len(numbers)
        and not set(taken).intersection(numbers)
    )
    if not right:
        cause = f"its agent gave streams {untrusted.stdin}, {untrusted.stdout}, {untrusted.stderr}"
        raise ProtocolViolation("create process", f"in zone {zone_id}", cause)


def connection(untrusted: pb.Dialed) -> DialedConnection:
    return DialedConnection(into=untrusted.in_stream, out=untrusted.out_stream)


def device(zone_id: str, untrusted: pb.DeviceFound) -> GuestDevice:
    """A disk.  ProtocolViolation: impossible device numbers (makedev(3))."""
    if untrusted.major > _MAJORS or untrusted.minor > _MINORS:
        cause = f"its agent found the device {untrusted.major}:{untrusted.minor}"
        raise ProtocolViolation("find device", f"in zone {zone_id}", cause)
    return GuestDevice(untrusted.major, untrusted.minor, untrusted.size_bytes, untrusted.in_use)


def process_list(zone_id: str, untrusted: pb.ProcessList) -> ProcessList:
    """The list, cut to a zone's largest number of processes."""
    if len(untrusted.processes) > _PROCESS_LIMIT:
        log.warning("zone lists too many processes", extra=logs.fields(zone=zone_id))
    return ProcessList(
        tuple(_process(process) for process in untrusted.processes[:_PROCESS_LIMIT]),
        tuple(connection(dialed) for dialed in untrusted.connections if dialed.in_stream),
    )


def _process(untrusted: pb.Process) -> ListedProcess:
    name = ProcessName(untrusted.process.container_id, untrusted.process.exec_id)
    exited = _exited(untrusted.exited) if untrusted.HasField("exited") else None
    return ListedProcess(
        name, _STATES.get(untrusted.state), untrusted.started_at_ns, exited, untrusted.created.pid
    )


def _exited(untrusted: pb.ProcessExited) -> ProcessExited:
    name = ProcessName(untrusted.process.container_id, untrusted.process.exec_id)
    return ProcessExited(
        name, untrusted.exit_code, untrusted.oom_killed, untrusted.exited_at_ns, untrusted.zone_oom
    )


def guest_size(untrusted: pb.Reply) -> GuestSize:
    size = untrusted.size
    return GuestSize(size.cpus, size.memory_total_bytes, size.memory_available_bytes)


def facts(untrusted: pb.Facts, agent_version: str) -> ZoneFacts:
    return ZoneFacts(
        kernel_release=printable(untrusted.kernel_release, _TEXT_CHARACTERS),
        kernel_version=printable(untrusted.kernel_version, _TEXT_CHARACTERS),
        hostname=printable(untrusted.hostname, _TEXT_CHARACTERS),
        hypervisor_type=printable(untrusted.hypervisor_type, _TEXT_CHARACTERS),
        pid1=printable(untrusted.pid1, _TEXT_CHARACTERS),
        uptime_ns=untrusted.uptime_ns,
        cpus=untrusted.cpus,
        cgroup=printable(untrusted.cgroup, _TEXT_CHARACTERS),
        agent_version=printable(agent_version, _TEXT_CHARACTERS),
    )


def stats(untrusted: pb.Stats, known: Callable[[str], bool]) -> ZoneStats:
    """Values of the statistics; unknown workloads and impossible names, times and averages are left out."""
    rows: dict[str, WorkloadStats] = {}
    for row in untrusted.containers:
        if row.id not in rows and known(row.id):
            rows[row.id] = _near(WorkloadStats._make((*_WORKLOAD(row), *_pressures(row))))
    named = [one for one in untrusted.zone.interfaces[:_MOST_INTERFACES] if _is_name(one.name)]
    interfaces = tuple(InterfaceStats(*_INTERFACE(one)) for one in named)
    zone = _near(ZoneFigures._make((*_ZONE(untrusted.zone), *_pressures(untrusted.zone), interfaces)))
    return ZoneStats(zone, tuple(rows.values()))


_WORKLOAD, _ZONE = attrgetter(*plain(WorkloadStats)), attrgetter(*plain(ZoneFigures))
_INTERFACE, _PRESSURE = attrgetter(*plain(InterfaceStats)), attrgetter(*plain(Pressure))
_AVERAGES = attrgetter(*(name for name in Pressure._fields if "avg" in name))


def _near(figures: T) -> T:
    """The figures, with the host's time in place of an impossible time."""
    now = time.time_ns()
    return figures._replace(timestamp_ns=now) if abs(figures.timestamp_ns - now) > _SKEW_NS else figures


def _pressures(untrusted: pb.ContainerStats | pb.ZoneStats) -> tuple[Pressure | None, ...]:
    """The pressures, in the order of ``PRESSURES``."""
    return (
        _pressure(untrusted.cpu_pressure) if untrusted.HasField("cpu_pressure") else None,
        _pressure(untrusted.memory_pressure) if untrusted.HasField("memory_pressure") else None,
        _pressure(untrusted.io_pressure) if untrusted.HasField("io_pressure") else None,
    )


def _pressure(untrusted: pb.Pressure) -> Pressure | None:
    """A pressure; None if an average is not a percentage."""
    pressure = Pressure(*_PRESSURE(untrusted))
    return pressure if all(0.0 <= value <= 100.0 for value in _AVERAGES(pressure)) else None


def _is_name(untrusted: str) -> bool:
    """Whether the name is valid for an interface."""
    return 0 < len(untrusted) <= 15 and untrusted.isascii() and untrusted.isprintable()
