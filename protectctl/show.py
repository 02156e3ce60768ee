"""Prints answers as tables for people; for programs by ``output``."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable

from protectctl import find
from protectctl.output import event as print_event
from protectctl.output import plain as plain
from protectctl.output import structured
from protectctl.selector import zone_state
from protectctl.tables import pairs as pairs
from protectctl.tables import table as table
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import reservations_pb2 as reservations

_NS = 1_000_000_000
_KIB, _MIB = 1 << 10, 1 << 20


def zones(answer: pb.ListZonesResponse, output: str) -> None:
    if structured(output, answer, names=(zone.id for zone in answer.zones)):
        return
    short = find.short([zone.id for zone in answer.zones])
    rows = [
        (short[zone.id], zone.name, zone_state(zone), mib(zone.resources.memory_bytes),
         str(zone.resources.vcpus), zone.profile, str(zone.domain_id), age(zone.created_at_ns))
        for zone in answer.zones
    ]  # fmt: skip
    table(("ZONE", "NAME", "STATE", "MEMORY", "VCPUS", "PROFILE", "DOMAIN", "AGE"), rows)


def orphans(answer: pb.ListStrangersResponse, output: str) -> None:
    if structured(output, answer, names=(one.uuid for one in answer.strangers)):
        return
    rows = [
        (one.uuid, one.zone_id, plain(one.name), "ended" if one.ended else "lives", mib(one.memory_bytes),
         str(one.vcpus), str(one.domain_id))
        for one in answer.strangers
    ]  # fmt: skip
    table(("UUID", "MADE FOR ZONE", "NAME", "STATE", "MEMORY", "VCPUS", "DOMAIN"), rows)


def zone(
    answer: pb.Zone, facts: pb.ZoneFactsResponse | None, stats: pb.ZoneStatsResponse | None, output: str
) -> None:
    if structured(output, answer, facts, stats, names=[answer.id]):
        return
    rows = [
        ("id", answer.id),
        ("name", answer.name),
        ("state", zone_state(answer)),
        ("death reason", answer.death_reason),
        ("last lines", answer.console),
        ("toolstack", answer.toolstack),
        ("domain", str(answer.domain_id)),
        ("profile", answer.profile),
        ("mode", pb.ZoneMode.Name(answer.mode).removeprefix("ZONE_MODE_").lower() if answer.mode else ""),
        ("kernel image", answer.kernel),
        ("label", answer.seclabel),
        ("memory", _up_to(mib, answer.resources.memory_bytes, answer.resources.memory_max_bytes)),
        ("memory policy", "dynamic" if _is_dynamic(answer) else ""),
        ("vcpus", _up_to(str, answer.resources.vcpus, answer.resources.vcpus_max)),
        ("cpu pool", answer.cpupool),
        ("cpu weight", str(answer.resources.weight) if answer.resources.HasField("weight") else ""),
        ("cpu cap", f"{answer.resources.cap}%" if answer.resources.cap else ""),
        *(("device", _device(one)) for one in answer.devices),
        ("scratch disk", mib(answer.scratch_bytes) if answer.scratch_bytes else ""),
        ("disk rates", _rates(answer.disk_rates)),
        ("created", when(answer.created_at_ns)),
        ("died", when(answer.died_at_ns)),
        ("channel", "connected" if answer.channel_connected else "not connected"),
    ]
    if facts is not None:
        rows += [
            ("kernel", f"{facts.kernel_release} {facts.kernel_version}"),
            ("hypervisor", facts.hypervisor_type or "none"),
            ("hostname", facts.hostname),
            ("pid 1", facts.pid1),
            ("agent", facts.agent_version),
            ("cpus", str(facts.cpus)),
            ("cgroup", facts.cgroup),
            ("uptime", f"{facts.uptime_ns / _NS:.1f} s"),
        ]
    for used in stats.rows if stats else ():
        rows += [
            (
                "cpu time",
                f"{used.cpu_usage_ns / _NS:.1f} s, by the host {used.host_cpu_usage_ns / _NS:.1f} s",
            ),
            ("memory in use", f"{mib(used.memory_usage_bytes)}, by the host {mib(used.host_memory_bytes)}"),
        ]
    pairs(rows)


def _up_to(say: Callable[[int], str], now: int, most: int) -> str:
    return f"{say(now)}, at most {say(most)}" if most > now else say(now)


def _is_dynamic(zone: pb.Zone) -> bool:
    return zone.resources.memory_policy == pb.MEMORY_POLICY_DYNAMIC


def workloads(answer: pb.ListWorkloadsResponse, output: str) -> None:
    if structured(output, answer, names=(one.id for one in answer.workloads)):
        return
    short = find.short([one.id for one in answer.workloads])
    zones_of = find.short([one.zone_id for one in answer.workloads])
    rows = [
        (
            short[one.id],
            zones_of[one.zone_id],
            _workload_state(one.state),
            _end(one),
            age(one.created_at_ns),
        )
        for one in answer.workloads
    ]
    table(("WORKLOAD", "ZONE", "STATE", "EXIT", "AGE"), rows)


def workload(answer: pb.Workload, output: str) -> None:
    if structured(output, answer, names=[answer.id]):
        return
    pairs(
        [
            ("id", answer.id),
            ("zone", answer.zone_id),
            ("state", _workload_state(answer.state)),
            ("pid in zone", str(answer.pid or "")),
            ("exit", _end(answer)),
            ("message", answer.message),
            ("created", when(answer.created_at_ns)),
            ("started", when(answer.started_at_ns)),
            ("finished", when(answer.finished_at_ns)),
        ]
    )


def event(answer: pb.WatchEvent, output: str) -> None:
    """Print an event as one line, and flush for waiting readers."""
    print_event(output, answer, lambda: _event_line(answer), _event_names(answer))


def capacity(answer: reservations.Capacity, output: str) -> None:
    """Print the zones' possible share of the host's memory."""
    if structured(output, answer, names=[mib(answer.free_bytes)]):
        return
    pairs(
        [
            ("zone memory", mib(answer.total_bytes)),
            ("promised", mib(answer.reserved_bytes)),
            ("of it by reservations", mib(answer.reservations_bytes)),
            ("free", mib(answer.free_bytes)),
            ("other domains", mib(answer.foreign_bytes)),
            ("dom0", mib(answer.dom0_bytes)),
            ("file servers may use", mib(answer.sharing_bytes)),
        ]
    )


def note(text: str) -> None:
    """Print a note on stderr."""
    sys.stderr.write(f"{plain(text)}\n")


class ConsoleText:
    """Prints a console's output on its arrival: lines stay lines, and no character controls the terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ended = True
        """Whether the output ends with a line's end."""

    def write(self, untrusted: bytes) -> None:
        text = self._decoder.decode(untrusted).replace("\r", "")
        if text:
            sys.stdout.write("".join(c if c in "\n\t" else plain(c) for c in text))
            sys.stdout.flush()
            self._ended = text.endswith("\n")

    def end(self) -> None:
        """End the last line."""
        if not self._ended:
            sys.stdout.write("\n")


def _event_line(answer: pb.WatchEvent) -> str:
    match answer.WhichOneof("event"):
        case "zone":
            return f"zone {answer.zone.id} {zone_state(answer.zone)} {answer.zone.death_reason}".rstrip()
        case "zone_gone":
            return f"zone {answer.zone_gone} gone"
        case "workload":
            one = answer.workload
            return f"workload {one.id} {_workload_state(one.state)} {_end(one)}".rstrip()
        case "workload_gone":
            return f"workload {answer.workload_gone} gone"
        case "notice":
            found = answer.notice
            return (
                f"host {found.setting} is {found.value or 'not set'}, wanted {found.wanted}: {found.effect}"
            )
        case "notice_gone":
            return f"host {answer.notice_gone} is as it should be"
        case _:
            return "synced"


def _event_names(answer: pb.WatchEvent) -> list[str]:
    """The id of the zone or workload; none of an event of the host."""
    ids = (answer.zone.id, answer.workload.id, answer.zone_gone, answer.workload_gone)
    return [found for found in ids if found]


def _device(one: pb.Device) -> str:
    parts = (one.name, one.place, one.disk, "" if one.attached else "changing")
    return " ".join(part for part in parts if part)


def _workload_state(state: pb.WorkloadState.ValueType) -> str:
    return pb.WorkloadState.Name(state).removeprefix("WORKLOAD_STATE_").lower()


def _end(one: pb.Workload) -> str:
    return f"{one.exit_code} {one.reason}" if one.state == pb.WORKLOAD_STATE_EXITED else ""


def _rates(rates: pb.DiskRates) -> str:
    said = []
    for way in ("read", "write"):
        size, operations = (getattr(rates, f"{way}_{unit}") for unit in ("bytes", "operations"))
        said += [f"{way} {size / _KIB:.0f} KiB/s"] if size else []
        said += [f"{way} {operations} operations/s"] if operations else []
    return ", ".join(said)


def mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.0f} MiB"


def when(at_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ns / _NS)) if at_ns else ""


def age(at_ns: int) -> str:
    seconds = max(0, int(time.time() - at_ns / _NS))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
