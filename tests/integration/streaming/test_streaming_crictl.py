"""Exec, attach and port-forward with crictl, unmodified, over both transports; a real zone on the fake."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import pty
import shutil
import signal
import struct
import termios
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.stage import Stage
from tests.support.waiting import until
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [
    pytest.mark.root,
    needs_node,
    pytest.mark.skipif(shutil.which("crictl") is None, reason="crictl is not on PATH"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.parametrize("transport", ["spdy", "websocket"]),
]

PIPE = asyncio.subprocess.PIPE
SIZE = 20 << 20
LARGE = 100_000_000
"""Bytes of a transfer."""


@dataclass
class Streams:
    """A pod with two containers: ``main`` only sleeps, ``reader`` is a shell that reads its stdin."""

    stage: Stage
    pod: Pod
    main: str
    reader: str

    def line(self, *arguments: str) -> list[str]:
        return self.stage.crictl(*arguments)

    async def run(self, *arguments: str, stdin: bytes | None = None) -> tuple[int, bytes, str]:
        """Exit status, stdout, stderr."""
        process = await asyncio.create_subprocess_exec(
            *self.line(*arguments), stdin=PIPE if stdin is not None else None, stdout=PIPE, stderr=PIPE
        )
        async with asyncio.timeout(120):
            stdout, stderr = await process.communicate(stdin)
        assert process.returncode is not None
        return process.returncode, stdout, stderr.decode()

    async def output(self, script: str) -> str:
        reply = await self.stage.client.exec(self.main, "sh", "-c", script)
        return reply.stdout.decode().strip()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def streams(module_stage: Stage) -> AsyncIterator[Streams]:
    pod = await module_stage.client.run_pod("streams")
    main = await module_stage.started(pod, "mkdir /www; sleep 100000")
    reader = await module_stage.started(pod, name="reader", command=["sh"], stdin=True)
    yield Streams(module_stage, pod, main, reader)
    await module_stage.tidy()


async def test_exec_separates_streams_and_reports_the_exit_code(streams: Streams, transport: str) -> None:
    code, out, err = await streams.run(
        "exec", "--transport", transport, streams.main, "sh", "-c", "echo out; echo err >&2; exit 7"
    )
    assert (code, out) == (1, b"out\n")
    assert err.startswith("err\n")
    assert "command terminated with exit code 7" in err
    assert await streams.run("exec", "--transport", transport, streams.main, "true") == (0, b"", "")


async def test_exec_of_a_missing_command(streams: Streams, transport: str) -> None:
    code, _, err = await streams.run("exec", "--transport", transport, streams.main, "nosuch")
    assert code == 1
    assert "nosuch" in err


async def test_much_input_and_output(streams: Streams, transport: str) -> None:
    content = os.urandom(SIZE)
    code, out, err = await streams.run(
        "exec",
        "--transport",
        transport,
        "-i",
        streams.main,
        "sh",
        "-c",
        "tee /www/in; echo >&2 done",
        stdin=content,
    )
    assert (code, err) == (0, "done\n")
    assert hashlib.sha256(out).digest() == hashlib.sha256(content).digest()
    assert (await streams.output("sha256sum /www/in")).split()[0] == hashlib.sha256(content).hexdigest()


class Terminal:
    """A command in a terminal of the test's."""

    def __init__(self, line: list[str]) -> None:
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execvp(line[0], line)
        os.set_blocking(self.fd, False)

    def send(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    async def until(self, text: str) -> None:
        """Read until the text has come; "" stands for the end."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            while not text or text.encode() not in self.seen:
                came = asyncio.Event()
                loop.add_reader(self.fd, came.set)
                try:
                    await came.wait()
                    self.seen += (piece := os.read(self.fd, 65536))
                except OSError:  # EIO: nobody has the terminal open any more
                    piece = b""
                finally:
                    loop.remove_reader(self.fd)
                if not piece:
                    assert not text, self.seen
                    return

    def close(self) -> int:
        os.close(self.fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


async def test_terminal_is_resized_and_reports_the_exit_code(streams: Streams, transport: str) -> None:
    terminal = Terminal(streams.line("exec", "--transport", transport, "-it", streams.main, "sh"))
    try:
        await terminal.until("# ")
        terminal.send("echo $TERM on $(tty)\r")
        await terminal.until("xterm on /dev/pts/")
        terminal.resize(33, 101)
        terminal.send("while [ \"$(stty size)\" != '33 101' ]; do :; done; echo res''ized\r")
        await terminal.until("resized")
        terminal.send("exit 5\r")
        await terminal.until("exit code 5")
    finally:
        terminal.close()


async def test_the_process_ends_with_its_client(streams: Streams, transport: str) -> None:
    name = f"31{len(transport)}"  # the argument tells this sleep from others
    script = f"echo up; exec sleep {name}"
    line = streams.line("exec", "--transport", transport, streams.main, "sh", "-c", script)
    process = await asyncio.create_subprocess_exec(*line, stdout=PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    assert await streams.output(f"ps | grep '[s]leep {name}'") != ""
    process.kill()
    await process.wait()

    async def ended() -> bool:
        return not await streams.output(f"ps | grep '[s]leep {name}'")

    await until(ended)


async def test_container_runs_on_after_attach_is_killed(streams: Streams, transport: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *streams.line("attach", "--transport", transport, "-i", streams.reader), stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    for number in range(3):
        process.stdin.write(f"echo {transport} $((40+{number}))\n".encode())
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == f"{transport} {40 + number}\n".encode()
    process.kill()
    await process.wait()
    status = await streams.stage.runtime.ContainerStatus(
        cri.ContainerStatusRequest(container_id=streams.reader)
    )
    assert status.status.state == cri.CONTAINER_RUNNING, "it goes on without its client"


async def test_attach_ends_with_its_input(streams: Streams, transport: str) -> None:
    """Each client is released, and the container reads on."""
    file = f"/tmp/{transport}"
    for word in ("one", "two"):
        process = await asyncio.create_subprocess_exec(
            *streams.line("attach", "--transport", transport, "-i", streams.reader), stdin=PIPE, stdout=PIPE
        )
        async with asyncio.timeout(60):
            await process.communicate(f"echo {word} >>{file}\n".encode())
        assert process.returncode == 0
    script = f"while [ $(wc -l <{file}) -lt 2 ]; do usleep 10000; done; cat {file}"
    reply = await streams.stage.client.exec(streams.reader, "sh", "-c", script)
    assert reply.stdout == b"one\ntwo\n"


async def fetch(port: int, path: str) -> tuple[int, str]:
    """One HTTP request through the forwarded port: the body's size and checksum."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0]
    size, checksum = 0, hashlib.sha256()
    while piece := await reader.read(1 << 18):
        size += len(piece)
        checksum.update(piece)
    writer.close()
    return size, checksum.hexdigest()


@contextlib.asynccontextmanager
async def forwarded(streams: Streams, transport: str) -> AsyncIterator[int]:
    """The local port."""
    process = await asyncio.create_subprocess_exec(
        *streams.line("port-forward", "--transport", transport, streams.pod.id, "0:8080"), stdout=PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(300):
            said = (await process.stdout.readline()).decode()
            yield int(said.split(" -> ")[0].rpartition(":")[2])
    finally:
        process.terminate()
        await process.wait()


async def test_port_forward_carries_concurrent_and_large_transfers(streams: Streams, transport: str) -> None:
    """Three connections at once, then 100 MB through a single connection, from a program to save memory."""
    make = f"seq 1 100000000 | head -c {LARGE}"
    await streams.output(
        f"""[ -e /www/big ] && exit
        head -c {SIZE} /dev/urandom >/www/big
        mkdir -p /www/cgi-bin
        cat >/www/cgi-bin/large <<'END'
#!/bin/sh
printf 'Content-Type: text/plain\\r\\n\\r\\n'
{make}
END
        chmod 755 /www/cgi-bin/large
        httpd -p 127.0.0.1:8080 -h /www"""
    )
    expected = (SIZE, (await streams.output("sha256sum /www/big")).split()[0])
    large = (LARGE, (await streams.output(f"{make} | sha256sum")).split()[0])
    async with forwarded(streams, transport) as port:
        assert set(await asyncio.gather(*(fetch(port, "/big") for _ in range(3)))) == {expected}
        assert await fetch(port, "/cgi-bin/large") == large
