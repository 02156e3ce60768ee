"""The audit log: kept and omitted fields of an entry, checks of a chain, callers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from daemonkit import faults
from daemonkit.config import Bytes
from daemonkit.observe.audit import command, log
from daemonkit.observe.audit.chain import ChainLink
from daemonkit.observe.audit.journal import AuditJournal
from daemonkit.observe.audit.log import AuditLog, auditing
from daemonkit.observe.audit.log_files import AuditFiles, paths, verify_folder
from daemonkit.observe.audit.redaction import COMMANDS, NAMES, redacted
from daemonkit.observe.callers import NOBODY, Caller, Callers, unit
from daemonkit.observe.calls import CallObserver
from daemonkit.observe.observe_settings import AuditConfig, AuditDestination
from daemonkit.rpc.channels import channel
from daemonkit.rpc.interceptors import read_only
from daemonkit.rpc.server import serve_unix
from protectctl.__main__ import main
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

SECRET = "s3cr3t-t0ken"
ON = AuditConfig(AuditDestination.FILE)


class AuditedZones(protect_pb2_grpc.ZonesServicer):
    async def CreateZone(self, request, context):  # type: ignore[no-untyped-def]
        return pb.Zone(id=request.id)

    async def DestroyZone(self, request, context):  # type: ignore[no-untyped-def]
        raise faults.Missing("destroy zone", request.id, f"there is none, {SECRET}")

    @read_only
    async def ListZones(self, request, context):  # type: ignore[no-untyped-def]
        return pb.ListZonesResponse()


class AuditedWorkloads(protect_pb2_grpc.WorkloadsServicer):
    async def Exec(self, requests, context):  # type: ignore[no-untyped-def]
        async for request in requests:
            if request.stdin_eof:
                return
            yield pb.ExecOutput(stdout=request.stdin)


def add(server: grpc.aio.Server) -> None:
    protect_pb2_grpc.add_ZonesServicer_to_server(AuditedZones(), server)
    protect_pb2_grpc.add_WorkloadsServicer_to_server(AuditedWorkloads(), server)


@asynccontextmanager
async def audited(folder: Path, config: AuditConfig = ON) -> AsyncIterator[grpc.aio.Channel]:
    async with auditing(config, "p", folder) as audit:
        assert audit is not None
        audit.pod_of = {"z1": "default/web"}.get  # type: ignore[assignment]
        async with (
            serve_unix(folder / "s", add, name="p", grace=0.1, audit=audit),
            channel(folder / "s") as link,
        ):
            yield link


def entries(folder: Path) -> list[dict[str, Any]]:
    """Of the files in order."""
    return [json.loads(line) for path in paths(folder) for line in path.read_text().splitlines()]


async def test_each_changing_call_has_an_entry(tmp_path: Path) -> None:
    async with audited(tmp_path) as link:
        zones = protect_pb2_grpc.ZonesStub(link)
        await zones.ListZones(pb.ListZonesRequest())
        await zones.CreateZone(pb.CreateZoneRequest(id="z1", name="default/web", sysctls={"a": SECRET}))
        with pytest.raises(grpc.aio.AioRpcError):
            await zones.DestroyZone(pb.DestroyZoneRequest(id="z1"))
    created, destroyed = entries(tmp_path / "audit" / "p")
    assert created["rpc"] == "protect.v1.Zones/CreateZone" and created["code"] == "OK"
    assert created["request"] == {"id": "z1", "name": "default/web", "sysctls": "<1 entries>"}
    assert created["reply"] == {"id": "z1"}
    assert destroyed["code"] == "NOT_FOUND" and SECRET not in json.dumps(destroyed)
    assert (created["seq"], destroyed["seq"]) == (1, 2) and destroyed["prev"] == created["hash"]
    for one in (created, destroyed):
        assert one["pod"] == "default/web" and one["us"] >= 0 and one["time"].endswith("+00:00")
        caller = one["caller"]
        assert caller["uid"] == os.geteuid() and caller["pid"] == os.getpid()
        assert caller["executable"] == os.path.realpath(sys.executable) and caller["unit"] == unit(
            os.getpid()
        )


async def test_callers_are_told_apart_and_forgotten(tmp_path: Path) -> None:
    code = (
        "import sys, grpc; from xenpod_proto.protect.v1 import protect_pb2 as pb, protect_pb2_grpc as rpc;"
        "link = grpc.insecure_channel(sys.argv[1]);"
        "rpc.ZonesStub(link).CreateZone(pb.CreateZoneRequest(id='other'), wait_for_ready=True)"
    )
    proto = Path(pb.__file__).resolve().parents[3]
    async with audited(tmp_path) as link:
        await protect_pb2_grpc.ZonesStub(link).CreateZone(pb.CreateZoneRequest(id="own"))
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, f"unix:{tmp_path / 's'}", cwd=proto
        )
        assert await other.wait() == 0
        await protect_pb2_grpc.ZonesStub(link).CreateZone(pb.CreateZoneRequest(id="own again"))
    found = {one["request"]["id"]: one["caller"]["pid"] for one in entries(tmp_path / "audit" / "p")}
    assert found == {"own": os.getpid(), "other": other.pid, "own again": os.getpid()}


def test_an_ended_connection_has_no_caller() -> None:
    callers = Callers()
    callers.add(b"\0ab12f", 0, os.getpid())
    assert callers.of("unix-abstract:ab12f").pid == os.getpid()
    callers.remove(b"\0ab12f")
    assert callers.of("unix-abstract:ab12f") == callers.of("unix:") == NOBODY


async def test_encoded_requests_are_read(tmp_path: Path) -> None:
    async with auditing(ON, "p", tmp_path) as audit:
        method = CallObserver(audit).method(
            "/runtime.v1.RuntimeService/StopPodSandbox", timed=True, reads=False
        )
        sent = cri.StopPodSandboxRequest(pod_sandbox_id="p1")
        assert method.parsed(sent.SerializeToString()) == sent
        assert method.parsed(b"\xff\xff") is None


@pytest.mark.parametrize(
    "rpc", ["ListPodSandbox", "Status", "PodSandboxStatus", "ContainerStats", "Version", "Inspect"]
)
async def test_reading_calls_are_not_audited(tmp_path: Path, rpc: str) -> None:
    async with auditing(ON, "p", tmp_path) as audit:
        for name, kept in ((rpc, None), ("Exec", audit), ("UpdateRuntimeConfig", audit)):
            full = f"/runtime.v1.RuntimeService/{name}"
            assert CallObserver(audit).method(full, timed=True, reads=False).audit is kept


async def test_a_stream_is_known_by_its_first_message(tmp_path: Path) -> None:
    start = pb.ExecStart(workload_id="z1", process=f'{{"args":["{SECRET}"]}}'.encode(), tty=True)

    async def said() -> AsyncIterator[pb.ExecInput]:
        yield pb.ExecInput(start=start)
        yield pb.ExecInput(stdin=SECRET.encode())
        yield pb.ExecInput(stdin_eof=True)

    async with audited(tmp_path) as link:
        outputs = [one.stdout async for one in protect_pb2_grpc.WorkloadsStub(link).Exec(said())]
    assert outputs == [b"", SECRET.encode()]
    (entry,) = entries(tmp_path / "audit" / "p")
    process = f"<{len(start.process)} bytes>"
    assert entry["request"] == {"start": {"workload_id": "z1", "process": process, "tty": True}}
    assert entry["pod"] == "default/web" and entry["code"] == "OK"


def test_commands_are_kept_if_configured() -> None:
    asked = cri.ExecSyncRequest(container_id="c", cmd=["sh", "-c", SECRET], timeout=3)
    assert redacted(asked) == {"container_id": "c", "cmd": "<3 words>", "timeout": 3}
    assert redacted(asked, commands=True)["cmd"] == ["sh", "-c", SECRET]


def test_the_unit_of_a_caller_is_in_its_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for group, expected in (
        ("0::/system.slice/kubelet.service\n", "kubelet.service"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", "session-3.scope"),
        ("0::/system.slice/docker-1.scope/init\n", "docker-1.scope"),
        ("0::/\n", ""),
    ):
        monkeypatch.setattr(Path, "read_text", lambda path, errors, group=group: group)
        assert unit(1) == expected


# Omitted fields.


def filled(kind: Any, depth: int = 5) -> Message:
    """A message with the secret in every text, including nested messages."""
    message = message_factory.GetMessageClass(kind)()
    for field in kind.fields:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            value = inner.fields_by_name["value"]
            if value.type == value.TYPE_STRING:
                getattr(message, field.name)[SECRET] = SECRET
        elif inner is not None:
            if depth:
                below = filled(inner, depth - 1)
                target = getattr(message, field.name)
                target.add().CopyFrom(below) if field.is_repeated else target.CopyFrom(below)
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            text: str | bytes = SECRET if field.type == field.TYPE_STRING else SECRET.encode()
            if field.name in NAMES and field.type == field.TYPE_STRING:
                text = "named"
            if field.is_repeated:
                getattr(message, field.name).append(text)
            else:
                setattr(message, field.name, text)
    return message


def requests() -> list[Any]:
    """The requests of all services of the daemons."""
    services = (
        "runtime.v1.RuntimeService", "runtime.v1.ImageService",
        "protect.v1.Zones", "protect.v1.Workloads", "protect.v1.Devices", "protect.v1.Host",
    )  # fmt: skip
    pool = descriptor_pool.Default()
    return [method.input_type for name in services for method in pool.FindServiceByName(name).methods]


def test_no_secret_of_any_field_is_kept() -> None:
    kinds = requests()
    assert len(kinds) > 60 and not NAMES & COMMANDS
    for kind in kinds:
        message = filled(kind)
        kept = json.dumps(redacted(message))
        assert SECRET not in kept, kind.full_name
        assert len(kept) < 32 * 1024


def test_registry_passwords_environment_and_commands_are_not_kept() -> None:
    pull = cri.PullImageRequest(
        image=cri.ImageSpec(image="registry.test/a:1@sha256:" + "0" * 64),
        auth=cri.AuthConfig(username="me", password=SECRET, identity_token=SECRET, registry_token=SECRET),
    )
    kept = redacted(pull)
    assert kept["auth"] == "<hidden>" and kept["image"] == {"image": pull.image.image}
    create = cri.CreateContainerRequest(
        config=cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main"),
            envs=[cri.KeyValue(key="TOKEN", value=SECRET.encode())],
            command=["sh", "-c", SECRET],
            annotations={"a": SECRET},
        )
    )
    config: Any = redacted(create)["config"]
    assert config["metadata"] == {"name": "main"} and config["command"] == "<3 words>"
    assert SECRET not in json.dumps(redacted(create, commands=False))
    in_name = cri.PullImageRequest(image=cri.ImageSpec(image=f"https://me:{SECRET}@registry.test/a"))
    assert SECRET not in json.dumps(redacted(in_name))


def test_long_requests_are_cut() -> None:
    many = cri.PodSandboxConfig(
        hostname="h" * 10_000,
        port_mappings=[cri.PortMapping(container_port=n, host_ip=SECRET) for n in range(1, 500)],
    )
    kept: Any = redacted(cri.RunPodSandboxRequest(config=many))
    assert len(kept["config"]["hostname"]) < 300 and len(kept["config"]["port_mappings"]) == 17
    assert kept["config"]["port_mappings"][-1] == "<483 more>"


# The chain.


def wrote(folder: Path, *numbers: int, size: int = 1 << 20, count: int = 4) -> AuditFiles:
    files = AuditFiles(folder, size, count)
    for number in numbers:
        files.append([{"rpc": f"r{number}"}])
    return files


def lines(folder: Path) -> list[bytes]:
    return (folder / "audit.log").read_bytes().splitlines(keepends=True)


def test_a_chain_goes_on_over_files_and_restarts(tmp_path: Path) -> None:
    wrote(tmp_path, 1, 2, 3, size=1, count=4).close()
    wrote(tmp_path, 4, 5, size=1, count=4).close()
    found = verify_folder(tmp_path)
    assert (found.wrong, found.first, found.last.seq, found.entries) == ([], 3, 5, 3)
    assert [one["rpc"] for one in entries(tmp_path)] == ["r3", "r4", "r5"]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def damage_cut(all_lines: list[bytes]) -> list[bytes]:
    return all_lines[:2] + all_lines[3:]


def damage_change(all_lines: list[bytes]) -> list[bytes]:
    return [*all_lines[:2], all_lines[2].replace(b"r3", b"rX"), *all_lines[3:]]


def damage_swap(all_lines: list[bytes]) -> list[bytes]:
    return [all_lines[0], all_lines[2], all_lines[1], *all_lines[3:]]


def damage_forge(all_lines: list[bytes]) -> list[bytes]:
    """The third entry is replaced by another entry with a correct hash."""
    place = ChainLink(2, json.loads(all_lines[1])["hash"])
    return [*all_lines[:2], place.follow({"rpc": "forged"})[1], *all_lines[3:]]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_cut, "between entries 2 and 4"),
        (damage_change, "line 3: its hash is of another text"),
        (damage_swap, "between entries 1 and 3"),
        (damage_forge, "between entries 3 and 4"),
        (lambda all_lines: all_lines[:-1], "entries 5 to 5 are missing at the end"),
        (lambda all_lines: all_lines[2:], "entries 1 to 2 are missing at the beginning"),
        (lambda all_lines: [], "entries 1 to 5 are missing at the end"),
    ],
)
def test_damage_to_an_audit_log_is_found(tmp_path: Path, damage: Any, says: str, capsys: Any) -> None:
    wrote(tmp_path, 1, 2, 3, 4, 5).close()
    assert main(["audit", "verify", str(tmp_path)]) == 0
    whole = lines(tmp_path)
    (tmp_path / "audit.log").write_bytes(b"".join(damage(whole)))
    assert main(["audit", "verify", str(tmp_path)]) == 1
    assert says in capsys.readouterr().out
    # The damage stays when the daemon goes on.
    wrote(tmp_path, 6).close()
    assert verify_folder(tmp_path).wrong


def test_a_noted_entry_must_exist(tmp_path: Path, capsys: Any) -> None:
    files = wrote(tmp_path, 1, 2)
    noted = str(files.link)
    files.close()
    wrote(tmp_path, 3).close()
    assert main(["audit", "verify", "--contains", noted, str(tmp_path)]) == 0
    for path in tmp_path.iterdir():
        path.unlink()
    wrote(tmp_path, 1, 2, 3, 4).close()  # a whole new chain, in order by itself
    (tmp_path / "audit.log").write_bytes((tmp_path / "audit.log").read_bytes().replace(b"r1", b"r0"))
    assert main(["audit", "verify", "--contains", noted, str(tmp_path)]) == 1
    assert main(["audit", "verify", str(tmp_path / "none")]) == 1


def test_half_a_line_of_a_killed_daemon_is_no_cut(tmp_path: Path) -> None:
    wrote(tmp_path, 1, 2).close()
    with (tmp_path / "audit.log").open("ab") as file:
        file.write(b'{"seq":3,"rpc":"ha')
    wrote(tmp_path, 3).close()
    assert verify_folder(tmp_path).wrong == [] and len(entries(tmp_path)) == 3


# The log does not wait, and records the number of lost entries.


class SlowSink:
    """Writes nothing until the test's signal; fails the given number of times."""

    def __init__(self, failures: int = 0) -> None:
        self.may = threading.Event()
        self.written: list[dict[str, object]] = []
        self._failures = failures

    def append(self, entries: Iterable[dict[str, object]]) -> None:
        assert self.may.wait(60)
        if self._failures:
            self._failures -= 1
            raise OSError(28, "No space left on device")
        self.written += entries

    def close(self) -> None:
        """Nothing is open."""


def add_entries(audit: AuditLog, count: int) -> None:
    for number in range(count):
        audit.add(f"r{number}", Caller(0, 1), "", {}, "OK", 0.0)


def test_a_slow_disk_bounds_waiting_entries_and_the_gap_is_recorded() -> None:
    sink = SlowSink()
    audit = AuditLog("p", sink)
    add_entries(audit, log.WAITING_EVENTS + 1000)
    sink.may.set()
    while len(sink.written) < log.WAITING_EVENTS:
        threading.Event().wait(0.01)
    add_entries(audit, 1)
    audit.close()
    lost = sum(int(str(one.get("lost", 0))) for one in sink.written)
    assert len(sink.written) + lost == log.WAITING_EVENTS + 1001 and lost > 0


def test_a_full_disk_is_counted_and_written_down_later(caplog: pytest.LogCaptureFixture) -> None:
    sink = SlowSink(failures=1)
    sink.may.set()
    audit = AuditLog("p", sink)
    add_entries(audit, 1)
    while not caplog.text:
        threading.Event().wait(0.01)
    add_entries(audit, 1)
    audit.close()
    assert [one.get("lost") for one in sink.written] == [1] and "No space left" in caplog.text


async def test_a_daemon_with_a_broken_audit_log_does_not_serve(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("in the way")
    with pytest.raises(faults.Broken, match="open audit log"):
        async with auditing(ON, "p", tmp_path):
            pass


def test_entries_in_the_journal_are_a_chain_too(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    path = tmp_path / "journal"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(str(path))
        for number in (1, 2):
            journal = AuditJournal(tmp_path / "state", path)
            journal.append([{"rpc": f"r{number}", "pod": "default/web"}])
            journal.close()
        messages = []
        for _ in range(2):
            untaken, fields = journald.recv(1 << 16), {}
            while untaken:
                name, _, rest = untaken.partition(b"\n")
                (size,) = struct.unpack_from("<Q", rest)
                fields[name], untaken = rest[8 : 8 + size], rest[8 + size + 1 :]
            assert fields[b"SYSLOG_IDENTIFIER"] == b"xenpod-audit" and fields[b"XENPOD_POD"] == b"default/web"
            messages.append(fields[b"MESSAGE"] + b"\n")
    (tmp_path / "cat").write_bytes(b"".join(messages))
    with (tmp_path / "cat").open() as shown:
        monkeypatch.setattr(sys, "stdin", shown)
        assert main(["audit", "verify", "-"]) == 0
    assert "2 entries in order: 1 to 2:" in capsys.readouterr().out


def test_the_command_looks_where_the_daemons_write() -> None:
    assert {path.name for path in command.FOLDERS} == {"protectd", "xenpod-cri"}
    assert AuditConfig().file_size == Bytes(16 << 20)
