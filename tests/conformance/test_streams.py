"""Exec, Attach and PortForward: their URLs, over both transports."""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import Any

import pytest

from tests.support.cri.conformance import SuiteStage, linux, refused
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.events import PATIENCE
from tests.support.cri.stream_client import WEBSOCKET, Spdy, Ws, connect, key, path_of, spdy, websocket
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]

SIZE = 2 << 20
_CHANNELS = ("stdin", "stdout", "stderr", "error", "resize")
both_transports = pytest.mark.parametrize("transport", ["spdy", "websocket"])


class SpdyClient:
    """A client's streams over SPDY."""

    def __init__(self, client: Spdy) -> None:
        self._client = client

    @classmethod
    async def of(cls, url: str, *kinds: str) -> SpdyClient:
        client = await spdy(_base(url), url)
        await client.open_all("error", *kinds)
        return cls(client)

    async def write(self, kind: str, data: bytes) -> None:
        await self._client.write(kind, data)

    async def finish(self, kind: str) -> None:
        await self._client.write(kind, b"", fin=True)

    def text(self, kind: str) -> bytes:
        return self._client.text(kind)

    async def until(self, kind: str, text: bytes) -> None:
        await self._client.until(lambda: text in self.text(kind))

    async def status(self) -> Any:
        """The v1.Status at the end."""
        await self._client.finished("error")
        return json.loads(self.text("error"))

    def close(self) -> None:
        self._client.line.abort()


class WebSocketClient:
    """A client's streams over WebSocket."""

    def __init__(self, client: Ws) -> None:
        self._client = client

    @classmethod
    async def of(cls, url: str, *kinds: str) -> WebSocketClient:
        return cls(await websocket(_base(url), url))

    async def write(self, kind: str, data: bytes) -> None:
        for begin in range(0, len(data), 32768):
            await self._client.send(bytes((_CHANNELS.index(kind),)) + data[begin : begin + 32768])

    async def finish(self, kind: str) -> None:
        await self._client.send(bytes((255, _CHANNELS.index(kind))))

    def text(self, kind: str) -> bytes:
        return self._client.channel(_CHANNELS.index(kind))

    async def until(self, kind: str, text: bytes) -> None:
        await self._client.until(lambda: text in self.text(kind))

    async def status(self) -> Any:
        await self._client.until(lambda: self.text("error"))
        return json.loads(self.text("error"))

    def close(self) -> None:
        self._client.line.abort()


Streams = SpdyClient | WebSocketClient


async def streams(transport: str, url: str, *kinds: str) -> Streams:
    return await (SpdyClient if transport == "spdy" else WebSocketClient).of(url, *kinds)


def _base(url: str) -> str:
    return "/".join(url.split("/")[:3])


async def exec_url(stage: SuiteStage, container: str, script: str, **wants: bool) -> str:
    wants = {"stdout": True, "stderr": not wants.get("tty")} | wants
    request = cri.ExecRequest(container_id=container, cmd=["sh", "-c", script], **wants)
    return str((await stage.runtime.Exec(request, timeout=PATIENCE)).url)


async def forward_url(stage: SuiteStage, pod: Pod) -> str:
    request = cri.PortForwardRequest(pod_sandbox_id=pod.id, port=[8080])
    return str((await stage.runtime.PortForward(request, timeout=PATIENCE)).url)


@both_transports
async def test_exec_streams_are_separate_and_exit_code_is_returned(
    stage: SuiteStage, shared_pod: Pod, transport: str
) -> None:
    """Streams apart, input with an end of its own, the exit code in a v1.Status."""
    container = await stage.started(shared_pod)
    url = await exec_url(stage, container, "cat; echo err >&2; exit 7", stdin=True)
    client = await streams(transport, url, "stdin", "stdout", "stderr")
    await client.write("stdin", b"some text")
    await client.until("stdout", b"some text")
    await client.finish("stdin")
    status = await client.status()
    assert (status["status"], status["reason"]) == ("Failure", "NonZeroExitCode")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]
    assert (client.text("stdout"), client.text("stderr")) == (b"some text", b"err\n")
    client.close()
    fine = await streams(transport, await exec_url(stage, container, "true"), "stdout", "stderr")
    assert (await fine.status())["status"] == "Success"
    fine.close()


@both_transports
async def test_terminal_is_resized_and_returns_the_exit_code(
    stage: SuiteStage, shared_pod: Pod, transport: str
) -> None:
    container = await stage.started(shared_pod)
    url = await exec_url(stage, container, "exec sh", stdin=True, tty=True)
    client = await streams(transport, url, "stdin", "stdout", "resize")
    await client.write("resize", json.dumps({"Width": 101, "Height": 33}).encode())
    await client.write(
        "stdin", b"until [ \"$(stty size)\" = '33 101' ]; do usleep 10000; done; echo re''sized\r"
    )
    await client.until("stdout", b"resized")
    await client.write("stdin", b"exit 3\r")
    assert (await client.status())["details"]["causes"][0]["message"] == "3"
    client.close()


TELLS = 'while read -r line; do echo "<$(stty size)>"; done'
"""A terminal's program that prints its size after each line."""


async def typed_after_a_resize(transport: str, url: str, rows: int) -> str:
    """The size seen by a program at the line sent after the resize."""
    client = await streams(transport, url, "stdin", "stdout", "resize")
    await client.write("resize", json.dumps({"Width": 100, "Height": rows}).encode())
    await client.write("stdin", b"\r")
    await client.until("stdout", b">")
    client.close()
    return re.sub(rb"[^0-9 ]", b"", client.text("stdout")).decode()


@both_transports
async def test_resize_arrives_before_later_input(stage: SuiteStage, shared_pod: Pod, transport: str) -> None:
    """Always, not only now and then: many execs, and many attaches to one program."""
    container = await stage.started(shared_pod, TELLS, tty=True, stdin=True)
    request = cri.AttachRequest(container_id=container, stdin=True, stdout=True, tty=True)
    sizes = [f"{rows} 100" for rows in range(20, 60)]
    attached, executed = [], []
    for rows in range(20, 60):
        url = await exec_url(stage, container, TELLS, stdin=True, tty=True)
        executed.append(await typed_after_a_resize(transport, url, rows))
        url = (await stage.runtime.Attach(request, timeout=PATIENCE)).url
        attached.append(await typed_after_a_resize(transport, url, rows))
    assert executed == sizes
    assert attached == sizes


@both_transports
async def test_process_of_an_exec_ends_with_its_client(
    stage: SuiteStage, shared_pod: Pod, transport: str
) -> None:
    container = await stage.started(shared_pod)
    client = await streams(
        transport, await exec_url(stage, container, "echo up; exec sleep 1007"), "stdout", "stderr"
    )
    await client.until("stdout", b"up")
    assert await stage.output(container, "ps -o args | grep -c '[s]leep 1007'") == "1"
    client.close()
    gone = "while ps -o args | grep -q '[s]leep 1007'; do usleep 10000; done; echo gone"
    assert await stage.output(container, gone) == "gone"


@both_transports
async def test_program_and_log_continue_after_attach_ends(
    stage: SuiteStage, shared_pod: Pod, transport: str
) -> None:
    """The attach ends with its client, the program does not; the log has the output too."""
    container = await stage.started(shared_pod, command=["sh"], stdin=True)
    request = cri.AttachRequest(container_id=container, stdin=True, stdout=True, stderr=True)
    url = (await stage.runtime.Attach(request, timeout=PATIENCE)).url
    client = await streams(transport, url, "stdin", "stdout", "stderr")
    await client.write("stdin", b"echo $((40+2)); echo err >&2\n")
    await client.until("stdout", b"42\n")
    await client.until("stderr", b"err\n")
    client.close()
    assert (await stage.status(container)).state == cri.CONTAINER_RUNNING
    assert "stdout F 42" in await stage.logged(container, "42")
    url = (await stage.runtime.Attach(request, timeout=PATIENCE)).url
    again = await streams(transport, url, "stdin", "stdout", "stderr")
    await again.write("stdin", b"exit 5\n")
    assert (await stage.ended(container)).exit_code == 5
    again.close()


@both_transports
async def test_zone_crash_is_no_success(stage: SuiteStage, transport: str) -> None:
    async with stage.pod(f"cut-{transport}-{time.time_ns() % 10**9}") as pod:
        container = await stage.started(pod, command=["cat"], stdin=True)
        url = await exec_url(stage, container, "echo up; exec sleep 1009")
        executed = await streams(transport, url, "stdout", "stderr")
        await executed.until("stdout", b"up")
        request = cri.AttachRequest(container_id=container, stdin=True, stdout=True, stderr=True)
        url = (await stage.runtime.Attach(request, timeout=PATIENCE)).url
        attached = await streams(transport, url, "stdin", "stdout", "stderr")
        await attached.write("stdin", b"up\n")
        await attached.until("stdout", b"up")
        await stage.crash(pod)
        for client in (executed, attached):
            status = await client.status()
            assert (status["status"], status["reason"]) == ("Failure", "InternalError"), status
            client.close()


async def serving(stage: SuiteStage, pod: Pod) -> tuple[str, str]:
    """A web server on the zone's loopback: the container, and the checksum of the page."""
    fetch = f"mkdir /www; head -c {SIZE} /dev/urandom >/www/big; exec httpd -f -p 127.0.0.1:8080 -h /www"
    container = await stage.started(pod, fetch)
    await stage.output(
        container, "until wget -q -O /dev/null http://127.0.0.1:8080/big; do usleep 50000; done"
    )
    return container, (await stage.output(container, "sha256sum /www/big")).split()[0]


async def test_port_forwards_over_spdy(stage: SuiteStage, shared_pod: Pod) -> None:
    """Several connections of a client, with a connection to a closed port."""
    _, expected = await serving(stage, shared_pod)
    url = await forward_url(stage, shared_pod)
    client = await spdy(_base(url), url, "portforward.k8s.io")
    for number, port in enumerate(("8080", "8080", "9")):
        for kind in ("error", "data"):
            client.streams[f"{kind}{number}"] = await client.open(
                streamtype=kind, port=port, requestid=str(number)
            )
    for number in range(2):
        await client.write(f"data{number}", b"GET /big HTTP/1.0\r\n\r\n")
    await client.finished("data0", "data1", "error2")
    for number in range(2):
        body = client.text(f"data{number}").partition(b"\r\n\r\n")[2]
        assert hashlib.sha256(body).hexdigest() == expected
    assert b"9" in client.text("error2") and client.text("error0") == b""
    client.line.abort()


async def test_port_forwards_over_websocket(stage: SuiteStage, shared_pod: Pod) -> None:
    """Channels 0 and 1 are the first port's data and error; both begin with the port."""
    _, expected = await serving(stage, shared_pod)
    url = await forward_url(stage, shared_pod)
    client = await websocket(_base(url), url, "v4.channel.k8s.io")
    await client.send(b"\0GET /big HTTP/1.0\r\n\r\n")
    await client.until(lambda: client.closed)
    port = (8080).to_bytes(2, "little")
    content = client.channel(0)
    assert content.startswith(port) and client.channel(1) == port
    assert hashlib.sha256(content.partition(b"\r\n\r\n")[2]).hexdigest() == expected


async def test_url_serves_a_single_client(stage: SuiteStage, shared_pod: Pod) -> None:
    container = await stage.started(shared_pod)
    url = await exec_url(stage, container, "exec sleep 1008")
    assert url.startswith("http://127.0.0.1:")
    client = await streams("websocket", url)
    for path in (
        path_of(url),
        "/exec/" + "a" * len(url.rpartition("/")[2]),
        "/attach/" + url.rpartition("/")[2],
    ):
        line = await connect(_base(url))
        assert (await line.ask(path, *WEBSOCKET, key())).status == 404
        line.close()
    client.close()


async def test_invalid_stream_request_is_refused(stage: SuiteStage, shared_pod: Pod) -> None:
    container = await stage.create(shared_pod, linux=linux())
    with refused("FAILED_PRECONDITION", container):
        await exec_url(stage, container, "true")
    with refused("FAILED_PRECONDITION", container):
        await stage.runtime.Attach(cri.AttachRequest(container_id=container, stdout=True), timeout=PATIENCE)
    with refused("INVALID_ARGUMENT"):
        await stage.client.start(container)
        await exec_url(stage, container, "true", tty=True, stderr=True)
    with refused("NOT_FOUND"):
        await forward_url(stage, Pod("0" * 64, shared_pod.config))
