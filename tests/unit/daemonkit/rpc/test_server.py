"""The gRPC server over a real unix socket: admission, errors, bytes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from daemonkit import faults
from daemonkit.rpc.channels import MESSAGE_LIMIT_BYTES, channel
from daemonkit.rpc.interceptors import CODES, TEXT_LIMIT, fault_of, read_only
from daemonkit.rpc.server import serve_unix
from daemonkit.tasks import Background
from tests.support.session.open_files import descriptors
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2, protect_pb2_grpc


class Zones(protect_pb2_grpc.ZonesServicer):
    """Answers GetZone as ``answer`` says; everything else as generated."""

    def __init__(self, answer: Callable[[str], protect_pb2.Zone]) -> None:
        self._answer = answer

    async def GetZone(self, request, context):  # type: ignore[no-untyped-def]
        return self._answer(request.id)


class Host(protect_pb2_grpc.HostServicer):
    """Streams ``gone`` events until told otherwise."""

    def __init__(self, endless: bool, eager: bool) -> None:
        self._endless = endless
        self._eager = eager
        self.ended = asyncio.Event()

    async def Watch(self, request, context):  # type: ignore[no-untyped-def]
        try:
            for number in range(3):
                yield protect_pb2.WatchEvent(zone_gone=str(number))
            while self._eager:
                yield protect_pb2.WatchEvent(zone_gone="more")
            if self._endless:
                await asyncio.Event().wait()
            raise faults.Refused("watch", "host", "enough")
        finally:
            self.ended.set()


class Workloads(protect_pb2_grpc.WorkloadsServicer):
    """Exec that echoes stdin."""

    async def Exec(self, requests, context):  # type: ignore[no-untyped-def]
        async for request in requests:
            if request.stdin_eof:
                return
            yield protect_pb2.ExecOutput(stdout=request.stdin)


def echo(name: str) -> protect_pb2.Zone:
    return protect_pb2.Zone(id=name)


def serving(  # type: ignore[no-untyped-def]
    path: Path,
    answer: Callable[[str], protect_pb2.Zone] = echo,
    endless: bool = False,
    eager: bool = False,
    grace: float = 5.0,
):
    def add(server: grpc.aio.Server) -> None:
        protect_pb2_grpc.add_ZonesServicer_to_server(Zones(answer), server)
        protect_pb2_grpc.add_HostServicer_to_server(Host(endless, eager), server)
        protect_pb2_grpc.add_WorkloadsServicer_to_server(Workloads(), server)

    return serve_unix(path, add, name="test", grace=grace)


async def get(path: Path, name: str) -> protect_pb2.Zone:
    async with channel(path) as link:
        return await protect_pb2_grpc.ZonesStub(link).GetZone(protect_pb2.GetZoneRequest(id=name), timeout=60)


async def failure(path: Path, name: str = "z") -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await get(path, name)
    return caught.value


async def test_answers_and_leaves_only_the_lock_file(tmp_path: Path) -> None:
    path = tmp_path / "run" / "p.sock"
    async with serving(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await get(path, "abc")).id == "abc"
        assert sorted(p.name for p in path.parent.iterdir()) == ["p.sock", "p.sock.lock"]
    assert [p.name for p in path.parent.iterdir()] == ["p.sock.lock"]


@pytest.mark.parametrize("kind", CODES)
async def test_each_fault_has_its_code(tmp_path: Path, kind: type[faults.Fault]) -> None:
    def answer(name: str) -> protect_pb2.Zone:
        raise kind("inspect zone", name, "reason", "try this")

    async with serving(tmp_path / "s", answer):
        error = await failure(tmp_path / "s", "abc")
    assert error.code() is CODES[kind]
    assert error.details() == "inspect zone abc: reason (try this)"
    back = fault_of(error, "ask", "protectd")
    assert type(back) is kind and str(back) == "ask protectd: inspect zone abc: reason (try this)"
    assert str(fault_of(error, "inspect zone", "abc")) == "inspect zone abc: reason (try this)"


async def test_a_kind_of_ones_own_has_its_parents_code(tmp_path: Path) -> None:
    class Gone(faults.Missing):
        pass

    def answer(name: str) -> protect_pb2.Zone:
        raise Gone("inspect", name, "x" * 100_000)

    async with serving(tmp_path / "s", answer):
        error = await failure(tmp_path / "s")
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert len(error.details() or "") == TEXT_LIMIT


async def test_a_bug_is_internal_short_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def answer(name: str) -> protect_pb2.Zone:
        raise KeyError("secret detail")

    async with serving(tmp_path / "s", answer):
        error = await failure(tmp_path / "s")
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (error.details() or "") and "Zones.GetZone" in (error.details() or "")
    assert any(record.exc_info and "GetZone" in record.getMessage() for record in caplog.records)


async def test_unknown_method_is_unimplemented_by_name(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path), channel(path) as link:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await protect_pb2_grpc.ZonesStub(link).ListZones(protect_pb2.ListZonesRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "Zones.ListZones" in (caught.value.details() or "")


async def test_streams_end_with_their_fault(tmp_path: Path) -> None:
    path = tmp_path / "s"
    seen = []
    async with serving(path), channel(path) as link:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for event in protect_pb2_grpc.HostStub(link).Watch(protect_pb2.WatchRequest()):
                seen.append(event.zone_gone)
    assert seen == ["0", "1", "2"]
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_stopping_daemon_ends_its_subscriptions_at_once(tmp_path: Path) -> None:
    """A call that will end by itself may do so."""
    path = tmp_path / "s"

    async def slow(requests: asyncio.Queue[protect_pb2.ExecInput]) -> AsyncIterator[protect_pb2.ExecInput]:
        while not (request := await requests.get()).stdin_eof:
            yield request

    requests: asyncio.Queue[protect_pb2.ExecInput] = asyncio.Queue()
    async with channel(path) as link:
        async with asyncio.timeout(120):
            async with serving(path, endless=True, grace=60.0):
                watch: Any = protect_pb2_grpc.HostStub(link).Watch(protect_pb2.WatchRequest())
                events = [await watch.read() for _ in range(3)]
                exec_: Any = protect_pb2_grpc.WorkloadsStub(link).Exec(slow(requests))
                requests.put_nowait(protect_pb2.ExecInput(stdin=b"one"))
                assert (await exec_.read()).stdout == b"one"
                begun = asyncio.get_running_loop().time()
                asyncio.get_running_loop().call_later(
                    0.5, requests.put_nowait, protect_pb2.ExecInput(stdin_eof=True)
                )
            took = asyncio.get_running_loop().time() - begun
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch.read()
        assert [event.zone_gone for event in events] == ["0", "1", "2"]
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await exec_.code() is grpc.StatusCode.OK
        assert 0.4 < took < 30


async def test_a_subscription_during_a_message_ends_at_once_too(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def read(watch: Any) -> None:
        while True:
            await watch.read()

    async with channel(path) as link, asyncio.timeout(30):
        async with serving(path, eager=True, grace=60.0):
            watches = [protect_pb2_grpc.HostStub(link).Watch(protect_pb2.WatchRequest()) for _ in range(10)]
            for watch in watches:
                await watch.read()
            reading = [asyncio.ensure_future(read(watch)) for watch in watches]
        for one in reading:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await one
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "is stopping" in (caught.value.details() or "")


class Slow(protect_pb2_grpc.ZonesServicer):
    """CreateZone that ends only by cancellation, and then undoes its work at the test's signal."""

    def __init__(self) -> None:
        self.entered, self.cancelled, self.may_undo = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.undone = 0

    async def CreateZone(self, request, context):  # type: ignore[no-untyped-def]
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
            await self.may_undo.wait()
            self.undone += 1


async def test_a_gone_client_cancels_its_call_once(tmp_path: Path) -> None:
    """Neither the end of the server nor a second cancellation cuts the undo; the owner waits for it."""
    path, servicer, tasks = tmp_path / "s", Slow(), Background()

    def add(server: grpc.aio.Server) -> None:
        protect_pb2_grpc.add_ZonesServicer_to_server(servicer, server)

    async with asyncio.timeout(60), channel(path) as link:
        async with serve_unix(path, add, name="test", grace=0.0, tasks=tasks):
            call = protect_pb2_grpc.ZonesStub(link).CreateZone(protect_pb2.CreateZoneRequest(id="z"))
            await servicer.entered.wait()
            call.cancel()
            await servicer.cancelled.wait()
        assert servicer.undone == 0
        servicer.may_undo.set()
        await tasks.close(60)
    assert servicer.undone == 1


class Tasks(protect_pb2_grpc.ZonesServicer):
    """Notes the task name of each handler."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def CreateZone(self, request, context):  # type: ignore[no-untyped-def]
        self.names.append(current_name())
        return protect_pb2.Zone()

    @read_only
    async def GetZone(self, request, context):  # type: ignore[no-untyped-def]
        self.names.append(current_name())
        return protect_pb2.Zone()


def current_name() -> str:
    task = asyncio.current_task()
    assert task is not None
    return task.get_name()


async def test_only_changing_handlers_have_a_separate_task(tmp_path: Path) -> None:
    path, servicer = tmp_path / "s", Tasks()
    async with channel(path) as link:
        async with serve_unix(
            path, lambda server: protect_pb2_grpc.add_ZonesServicer_to_server(servicer, server), name="test"
        ):
            stub = protect_pb2_grpc.ZonesStub(link)
            await stub.CreateZone(protect_pb2.CreateZoneRequest(id="z"))
            await stub.GetZone(protect_pb2.GetZoneRequest(id="z"))
    assert servicer.names[0] == "Zones.CreateZone"
    assert servicer.names[1] != "Zones.GetZone"


async def test_a_server_waits_for_the_undo_of_its_calls(tmp_path: Path) -> None:
    path, servicer = tmp_path / "s", Slow()
    servicer.may_undo.set()
    async with channel(path) as link:
        async with serve_unix(
            path, lambda server: protect_pb2_grpc.add_ZonesServicer_to_server(servicer, server), name="test"
        ):
            call = protect_pb2_grpc.ZonesStub(link).CreateZone(protect_pb2.CreateZoneRequest(id="z"))
            await servicer.entered.wait()
            call.cancel()
        assert servicer.undone == 1


async def test_a_message_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path), grpc.aio.insecure_channel(f"unix:{path}") as link:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await protect_pb2_grpc.ZonesStub(link).GetZone(
                protect_pb2.GetZoneRequest(id="x" * (MESSAGE_LIMIT_BYTES + 1))
            )
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_megabytes_pass_both_ways_under_back_pressure(tmp_path: Path) -> None:
    path = tmp_path / "s"
    blocks = [os.urandom(1 << 20) for _ in range(24)]

    async def requests() -> AsyncIterator[protect_pb2.ExecInput]:
        for block in blocks:
            yield protect_pb2.ExecInput(stdin=block)
        yield protect_pb2.ExecInput(stdin_eof=True)

    got = []
    async with serving(path), channel(path) as link:
        async for output in protect_pb2_grpc.WorkloadsStub(link).Exec(requests()):
            got.append(output.stdout)
    assert b"".join(got) == b"".join(blocks)


async def test_a_dead_daemons_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    async with serving(path):
        assert (await get(path, "new")).id == "new"


async def test_a_second_live_daemon_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path):
        with pytest.raises(faults.Refused, match="another live daemon"):
            async with serving(path):
                pass
        assert (await get(path, "first")).id == "first"


async def test_leftovers_of_a_daemon_killed_at_start_are_removed(tmp_path: Path) -> None:
    left = tmp_path / ".s.inner"
    left.mkdir()
    (left / "s").touch()
    async with serving(tmp_path / "s"):
        assert (await get(tmp_path / "s", "new")).id == "new"
        assert not left.exists()


async def test_something_else_at_the_path_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(faults.Refused, match="not a socket"):
        async with serving(path):
            pass
    assert path.read_text() == "precious"


async def test_a_path_too_long_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 110) / "s"
    with pytest.raises(faults.Invalid, match="run_dir"):
        async with serving(path):
            pass


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
async def test_another_user_is_refused_even_with_an_open_mode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    path = tmp_path / "s"
    async with serving(path):
        path.chmod(0o666)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _CONNECT, str(path), stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
    assert out == b"b''\n"
    refused = [record for record in caplog.records if "refused" in record.getMessage()]
    assert refused and refused[0].xenpod_fields["uid"] == 65534  # type: ignore[attr-defined]
    assert refused[0].xenpod_fields["pid"] == process.pid  # type: ignore[attr-defined]


_CONNECT = """
import os, socket, sys
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.settimeout(60)
print(s.recv(1))
"""


async def test_a_client_after_its_half_close_gets_the_rest(tmp_path: Path) -> None:
    """Half-close: the server's HTTP/2 preface arrives although the client will send nothing more."""
    path = tmp_path / "s"
    async with serving(path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 60)
        writer.close()


async def test_ended_connections_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path):
        await get(path, "warm")
        before = len(descriptors())
        for turn in range(30):
            _, writer = await asyncio.open_unix_connection(path)
            if turn % 2:
                writer.write(b"no HTTP/2 at all" * 1000)
                writer.transport.abort()
            writer.close()
        await get(path, "still")
        await until(lambda: len(descriptors()) <= before)
