"""Output of ``protect zone``, ``workload``, ``host`` and ``watch``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from daemonkit.rpc.server import serve_unix
from protectctl.__main__ import main
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

MIB = 1 << 20
CREATED, DIED = 1_700_000_000, 1_700_003_600
WEB = pb.Zone(
    id="z1",
    name="web",
    state=pb.ZONE_STATE_RUNNING,
    profile="default",
    resources=pb.ZoneResources(memory_bytes=256 * MIB, vcpus=2, weight=128, cap=60),
    scratch_bytes=1024 * MIB,
    created_at_ns=CREATED * 10**9,
    domain_id=7,
    toolstack="fake",
    channel_connected=True,
    kernel="kernels/own:1",
    seclabel="a:b:c",
    disk_rates=pb.DiskRates(read_bytes=MIB, write_operations=50),
)
DEAD = pb.Zone(
    id="z2",
    state=pb.ZONE_STATE_DEAD,
    created_at_ns=CREATED * 10**9,
    died_at_ns=DIED * 10**9,
    death_reason="crash",
    death_kind="Crashed",
    console="one\ntwo",
)
FACTS = pb.ZoneFactsResponse(
    kernel_release="6.12.1",
    kernel_version="#1 SMP",
    hostname="web",
    hypervisor_type="xen",
    pid1="agent",
    uptime_ns=12_340_000_000,
    cpus=2,
    cgroup="v2",
    agent_version="1.2",
)
RUNNING = pb.Workload(id="w1", zone_id="z1", state=pb.WORKLOAD_STATE_RUNNING, pid=42,
                      created_at_ns=CREATED * 10**9, started_at_ns=(CREATED + 60) * 10**9)  # fmt: skip
ENDED = pb.Workload(
    id="w2",
    zone_id="z1",
    state=pb.WORKLOAD_STATE_EXITED,
    created_at_ns=CREATED * 10**9,
    started_at_ns=(CREATED + 60) * 10**9,
    finished_at_ns=DIED * 10**9,
    exit_code=137,
    reason="OOMKilled",
    message="it wanted too much",
)
INFO = pb.InfoResponse(
    version="1.0",
    toolstack="fake",
    xen_version="none",
    notices=["no boundary", "memory is low"],
    unknown_domains=["stranger"],
    cpus=8,
    profiles=["default", "small"],
    memory=pb.MemoryLedger(total_bytes=4096 * MIB, free_bytes=1024 * MIB, reserved_bytes=3072 * MIB),
)
EVENTS = [
    pb.WatchEvent(zone=WEB),
    pb.WatchEvent(zone=DEAD),
    pb.WatchEvent(workload=RUNNING),
    pb.WatchEvent(workload=ENDED),
    pb.WatchEvent(synced=pb.Empty()),
    pb.WatchEvent(zone_gone="z2"),
    pb.WatchEvent(workload_gone="w2"),
]


def at(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


class Daemon(
    protect_pb2_grpc.ZonesServicer, protect_pb2_grpc.WorkloadsServicer, protect_pb2_grpc.HostServicer
):
    """Answers by its fields, and remembers its requests."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.zones, self.workloads = [WEB, DEAD], [RUNNING, ENDED]
        self.facts: pb.ZoneFactsResponse | None = FACTS
        self.info = INFO

    async def ListZones(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ListZonesResponse(zones=self.zones)

    async def GetZone(self, request: Any, context: Any) -> Any:  # noqa: N802
        return next(zone for zone in self.zones if zone.id == request.id)

    async def ZoneFacts(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append(request)
        if self.facts is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no \x1banswer")
        return self.facts

    async def ZoneConsole(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append(request)
        for data in (b"one\r\n\x1b[2J\xc3", b"\xa4\tand \xff"):
            yield pb.ZoneConsoleResponse(data=data)

    async def DestroyZone(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append(request)
        return pb.DestroyZoneResponse()

    async def ListWorkloads(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append(request)
        return pb.ListWorkloadsResponse(workloads=self.workloads)

    async def GetWorkload(self, request: Any, context: Any) -> Any:  # noqa: N802
        return next(one for one in self.workloads if one.id == request.id)

    async def Info(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.info

    async def Watch(self, request: Any, context: Any) -> Any:  # noqa: N802
        for event in EVENTS:
            yield event


class Command:
    """``protect`` against the daemon; lines of output with single spaces."""

    def __init__(self, socket: Path, daemon: Daemon, capture: pytest.CaptureFixture[str]) -> None:
        self.daemon, self.error = daemon, ""
        self._socket, self._capture = socket, capture

    async def raw(self, *arguments: str, status: int = 0) -> str:
        assert await asyncio.to_thread(main, [*arguments, "--socket", str(self._socket)]) == status
        out, self.error = self._capture.readouterr()
        return out

    async def lines(self, *arguments: str) -> list[str]:
        return [" ".join(line.split()) for line in (await self.raw(*arguments)).splitlines()]

    async def json(self, *arguments: str) -> list[object]:
        """Every printed object."""
        text, found = await self.raw(*arguments, "--output", "json"), []
        while text.strip():
            value, end = json.JSONDecoder().raw_decode(text)
            found.append(value)
            text = text[end:].lstrip()
        return found


@pytest.fixture
async def protect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Command]:
    daemon, socket = Daemon(), tmp_path / "protect.sock"

    def add(server: grpc.aio.Server) -> None:
        protect_pb2_grpc.add_ZonesServicer_to_server(daemon, server)
        protect_pb2_grpc.add_WorkloadsServicer_to_server(daemon, server)
        protect_pb2_grpc.add_HostServicer_to_server(daemon, server)

    async with serve_unix(socket, add, name="test", grace=0.1):
        yield Command(socket, daemon, capsys)


async def test_zones_are_listed(protect: Command) -> None:
    head, web, dead = await protect.lines("zone", "list")
    assert head == "ZONE NAME STATE MEMORY VCPUS PROFILE DOMAIN AGE"
    assert web.startswith("z1 web running 256 MiB 2 default 7 ")
    assert dead.startswith("z2 dead 0 MiB 0 0 ")
    ((answer),) = await protect.json("zone", "list")
    assert isinstance(answer, dict) and [zone["state"] for zone in answer["zones"]] == [
        "ZONE_STATE_RUNNING",
        "ZONE_STATE_DEAD",
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3600, "0s"), (90, "1m"), (3 * 60 + 30, "3m"), (3600 + 60, "1h"), (23 * 3600 + 60, "23h"),
     (86_400 + 60, "1d"), (9 * 86_400 + 60, "9d")],
)  # fmt: skip
async def test_ages_are_shown(protect: Command, seconds: int, shown: str) -> None:
    protect.daemon.zones = [pb.Zone(id="z", created_at_ns=int((time.time() - seconds) * 10**9))]
    assert (await protect.lines("zone", "list"))[1].split()[-1] == shown


async def test_inspect_shows_a_running_zone_with_its_agent(protect: Command) -> None:
    assert await protect.lines("zone", "inspect", "z1") == [
        "id z1",
        "name web",
        "state running",
        "toolstack fake",
        "domain 7",
        "profile default",
        "kernel image kernels/own:1",
        "label a:b:c",
        "memory 256 MiB",
        "vcpus 2",
        "cpu weight 128",
        "cpu cap 60%",
        "scratch disk 1024 MiB",
        "disk rates read 1024 KiB/s, write 50 operations/s",
        f"created {at(CREATED)}",
        "channel connected",
        "kernel 6.12.1 #1 SMP",
        "hypervisor xen",
        "hostname web",
        "pid 1 agent",
        "agent 1.2",
        "cpus 2",
        "cgroup v2",
        "uptime 12.3 s",
    ]
    assert protect.daemon.asked == [pb.ZoneFactsRequest(id="z1")]
    zone, facts = await protect.json("zone", "inspect", "z1")
    assert isinstance(zone, dict) and isinstance(facts, dict)
    assert zone["kernel"] == "kernels/own:1" and facts["pid1"] == "agent"
    protect.daemon.facts = pb.ZoneFactsResponse(pid1="agent")
    assert "hypervisor none" in await protect.lines("zone", "inspect", "z1")


async def test_a_silent_zone_is_shown_without_figures(protect: Command) -> None:
    protect.daemon.facts = None
    lines = await protect.lines("zone", "inspect", "z1")
    assert lines[-1] == "channel connected"
    assert protect.error == "the zone's agent does not answer: no \\x1banswer\n"
    assert len(await protect.json("zone", "inspect", "z1")) == 1


async def test_console_is_printed_without_control_bytes(protect: Command) -> None:
    """The lines as they come; no byte of them controls the terminal."""
    assert await protect.raw("zone", "console", "z1") == "one\n\\x1b[2J\xe4\tand \ufffd\n"
    await protect.raw("zone", "console", "z1", "--follow", "--lines", "0")
    assert protect.daemon.asked == [
        pb.ZoneConsoleRequest(id="z1", lines=50),
        pb.ZoneConsoleRequest(id="z1", follow=True),
    ]
    for wrong in ("-1", "many", str(1 << 31)):
        with pytest.raises(SystemExit):
            await protect.raw("zone", "console", "z1", "--lines", wrong)


async def test_inspect_shows_a_dead_zone_with_its_reason(protect: Command) -> None:
    lines = await protect.lines("zone", "inspect", "z2")
    assert lines[:5] == ["id z2", "state dead", "death reason crash", "last lines one", "two"]
    assert lines[-3:] == [f"created {at(CREATED)}", f"died {at(DIED)}", "channel not connected"]
    assert protect.daemon.asked == [] and protect.error == ""


async def test_zones_are_destroyed_by_their_ids(protect: Command) -> None:
    assert await protect.raw("zone", "destroy", "z1", "z2") == ""
    assert protect.daemon.asked == [pb.DestroyZoneRequest(id="z1"), pb.DestroyZoneRequest(id="z2")]


LONG = ["1a" * 32, "1a" * 31 + "2b", "3c" * 32]


async def test_short_ids_are_enough(protect: Command) -> None:
    """A unique beginning is enough; the daemon gets whole ids."""
    protect.daemon.zones = [pb.Zone(id=one, state=pb.ZONE_STATE_RUNNING) for one in LONG]
    protect.daemon.workloads = [pb.Workload(id=one, zone_id=LONG[2]) for one in LONG]
    shown = [line.split()[0] for line in (await protect.lines("zone", "list"))[1:]]
    assert shown == [one[:63] for one in LONG]
    for zone in (*shown, LONG[0]):
        assert (await protect.lines("zone", "inspect", zone))[0].removeprefix("id ").startswith(zone)
    assert (await protect.lines("workload", "inspect", "3"))[0] == f"id {LONG[2]}"
    protect.daemon.asked.clear()
    await protect.raw("zone", "destroy", "3c3c", LONG[1])
    assert protect.daemon.asked == [pb.DestroyZoneRequest(id=LONG[2]), pb.DestroyZoneRequest(id=LONG[1])]
    protect.daemon.asked.clear()
    await protect.raw("workload", "list", "--zone", "3c")
    assert protect.daemon.asked == [pb.ListWorkloadsRequest(zone_id=LONG[2])]


@pytest.mark.parametrize(
    "command",
    [("zone", "inspect"), ("zone", "destroy", "3c"), ("workload", "inspect"), ("workload", "list", "--zone")],
)
async def test_an_ambiguous_beginning_is_refused(protect: Command, command: tuple[str, ...]) -> None:
    """With the matching ids, and before any change to the other zones."""
    protect.daemon.zones = [pb.Zone(id=one) for one in LONG]
    protect.daemon.workloads = [pb.Workload(id=one) for one in LONG]
    assert await protect.raw(*command, "1a1a", status=1) == ""
    assert "'1a1a' is the prefix of 2 " in protect.error
    assert LONG[0] in protect.error and LONG[1] in protect.error and LONG[2] not in protect.error
    assert not [one for one in protect.daemon.asked if isinstance(one, pb.DestroyZoneRequest)]


async def test_workloads_are_listed_with_state_and_exit(protect: Command) -> None:
    head, running, ended = await protect.lines("workload", "list", "--zone", "z1")
    assert head == "WORKLOAD ZONE STATE EXIT AGE"
    assert running.startswith("w1 z1 running ") and len(running.split()) == 4
    assert ended.startswith("w2 z1 exited 137 OOMKilled ")
    (answer,) = await protect.json("workload", "list")
    assert isinstance(answer, dict) and [one["exit_code"] for one in answer["workloads"]] == [0, 137]
    assert protect.daemon.asked == [pb.ListWorkloadsRequest(zone_id="z1"), pb.ListWorkloadsRequest()]


async def test_inspect_prints_a_workload(protect: Command) -> None:
    assert await protect.lines("workload", "inspect", "w1") == [
        "id w1",
        "zone z1",
        "state running",
        "pid in zone 42",
        f"created {at(CREATED)}",
        f"started {at(CREATED + 60)}",
    ]
    assert await protect.lines("workload", "inspect", "w2") == [
        "id w2",
        "zone z1",
        "state exited",
        "exit 137 OOMKilled",
        "message it wanted too much",
        f"created {at(CREATED)}",
        f"started {at(CREATED + 60)}",
        f"finished {at(DIED)}",
    ]
    (answer,) = await protect.json("workload", "inspect", "w2")
    assert isinstance(answer, dict) and answer["reason"] == "OOMKilled" and answer["pid"] == 0


async def test_a_long_message_is_folded_not_cut(protect: Command) -> None:
    words = "x" * 5000
    protect.daemon.workloads = [pb.Workload(id="w1", message=words)]
    assert "".join((await protect.raw("workload", "inspect", "w1")).split()).count("x") == len(words)


async def test_host_shows_boundary_memory_and_notices(protect: Command) -> None:
    lines = [
        "version 1.0",
        "toolstack fake (none)",
        "security boundary NO",
        "cpus 8",
        "zone memory 4096 MiB, free 1024 MiB",
        "profiles default, small",
        "kernels from images no",
        "notice no boundary",
        "notice memory is low",
        "unknown domain stranger",
    ]
    assert await protect.lines("host") == lines
    (answer,) = await protect.json("host")
    assert isinstance(answer, dict) and answer["security_boundary"] is False
    protect.daemon.info = pb.InfoResponse(security_boundary=True, zone_kernels=True, toolstack="libxl")
    lines = await protect.lines("host")
    assert "security boundary yes" in lines and "kernels from images yes" in lines


async def test_a_watch_shows_lines_of_events(protect: Command) -> None:
    assert await protect.lines("watch") == [
        "zone z1 running",
        "zone z2 dead crash",
        "workload w1 running",
        "workload w2 exited 137 OOMKilled",
        "synced",
        "zone z2 gone",
        "workload w2 gone",
    ]
    text = await protect.raw("watch", "--output", "json")
    events = [json.loads(line) for line in text.splitlines()]
    assert len(events) == 7 and events[0]["zone"]["domain_id"] == 7 and events[5] == {"zone_gone": "z2"}


async def test_a_refusing_daemon_is_an_error(protect: Command, tmp_path: Path) -> None:
    """The socket exists: no advice to start the daemon."""
    protect.daemon.info = None  # type: ignore[assignment]
    await protect.raw("host", status=1)
    assert protect.error.startswith("protect: ") and "nobody serves" not in protect.error
    dead = tmp_path / "dead.sock"
    dead.touch()
    assert await asyncio.to_thread(main, ["host", "--socket", str(dead)]) == 3
