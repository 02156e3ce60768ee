"""``protect`` at a terminal: tables of 80 columns, hidden passwords."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from daemonkit.rpc.server import serve_unix
from xenpod_proto.images.v1 import images_pb2 as pb
from xenpod_proto.images.v1 import images_pb2_grpc

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 60
WIDTH = 80
HEX = "0123456789abcdef" * 4
NAMES = [
    "docker.io/library/busybox:1.36",
    "registry.example.com:5000/a/rather/long/team/application:v1.2.3-rc.4",
]
IMAGE = pb.Image(
    id=f"sha256:{HEX}",
    tags=NAMES,
    digests=[f"docker.io/library/busybox@sha256:{HEX[::-1]}"],
    size_bytes=123_456 << 20,
    pulled_at_ns=1,
    pinned=True,
    containers=["c"] * 123,
)


class Images(images_pb2_grpc.ImagesServicer):
    def __init__(self) -> None:
        self.asked: list[pb.PullRequest] = []

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ListResponse(images=[IMAGE])

    async def Export(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The first half of a layout, and then nothing more."""
        yield pb.ExportEvent(note="half of it")
        yield pb.ExportEvent(file=pb.ExportFile(path="oci-layout", size_bytes=4))
        yield pb.ExportEvent(data=b"{}")
        yield pb.ExportEvent(note="the end")
        await asyncio.Event().wait()

    async def Pull(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.asked.append(request)
        yield pb.PullEvent(image=IMAGE)


def _on_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A command in a shell's background ignores SIGINT, and this program would, too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program on its own terminal, as its controlling terminal."""

    def __init__(self, *arguments: str) -> None:
        self._end, other = os.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
        self._said = b""
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "protectctl", *arguments],
            cwd=ROOT, stdin=other, stdout=other, stderr=other, env=environment | {"TERM": "dumb"},
            start_new_session=True, preexec_fn=_on_terminal,
        )  # fmt: skip
        os.close(other)

    def until(self, text: bytes) -> None:
        while text not in self._said:
            more = os.read(self._end, 4096)
            assert more, self._said
            self._said += more

    def type(self, text: bytes) -> None:
        os.write(self._end, text)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> tuple[int, str]:
        """Wait for the end; returns the status and all output."""
        # The terminal's last reader is gone: EIO.
        with contextlib.suppress(OSError):
            while more := os.read(self._end, 4096):
                self._said += more
        os.close(self._end)
        return self._process.wait(PATIENCE), self._said.decode()


@pytest.fixture
def images() -> Images:
    return Images()


@pytest.fixture
async def run(tmp_path: Path, images: Images) -> AsyncIterator[Callable[..., Any]]:
    socket = tmp_path / "cri.sock"

    def add(server: grpc.aio.Server) -> None:
        images_pb2_grpc.add_ImagesServicer_to_server(images, server)

    async def script(work: Callable[[Terminal], tuple[int, str]], *arguments: str) -> tuple[int, str]:
        terminal = await asyncio.to_thread(Terminal, "image", *arguments, "--cri-socket", str(socket))
        try:
            return await asyncio.wait_for(asyncio.to_thread(work, terminal), PATIENCE)
        finally:
            terminal.kill()  # otherwise the thread waits for ever, and the tests' end waits for the thread

    async with serve_unix(socket, add, name="test", grace=0.1):
        yield script


async def test_a_list_fits_80_columns(run: Callable[..., Any]) -> None:
    """Nothing is cut off, and every name is shown."""
    status, out = await run(Terminal.end, "list")
    lines = out.splitlines()
    assert status == 0 and max(map(len, lines)) <= WIDTH
    head = lines[0]
    assert head.split() == ["ID", "SIZE", "USERS", "PINNED", "AGE", "NAMES"]
    assert lines[1].split()[:6] == ["0123456789ab", "123456", "MiB", "123", "yes", lines[1].split()[5]]
    names = "".join(line[head.index("NAMES") :].strip() for line in lines[1:])
    assert names == "".join([*NAMES, f"docker.io/library/busybox@sha256:{HEX[::-1][:12]}"])
    assert "…" not in out


async def test_a_typed_password_is_not_shown(run: Callable[..., Any], images: Images) -> None:
    def typed(terminal: Terminal) -> tuple[int, str]:
        terminal.until(b"Password of me: ")
        terminal.type(b"s3cret word\n")
        return terminal.end()

    status, out = await run(typed, "pull", "web", "--username", "me")
    assert status == 0 and "s3cret" not in out
    assert [(one.username, one.password) for one in images.asked] == [("me", "s3cret word")]


@pytest.mark.parametrize(("key", "status"), [(b"\x03", 130), (b"\x04", 1)], ids=["interrupt", "end"])
async def test_a_missing_password_ends_the_command(
    run: Callable[..., Any], images: Images, key: bytes, status: int
) -> None:
    def typed(terminal: Terminal) -> tuple[int, str]:
        terminal.until(b"Password of me: ")
        terminal.type(key)
        return terminal.end()

    ended, out = await run(typed, "pull", "web", "--username", "me")
    assert ended == status and "Traceback" not in out
    assert images.asked == []


@pytest.mark.parametrize("more", [(), ("--directory",)])
async def test_an_interrupted_export_leaves_nothing(
    run: Callable[..., Any], tmp_path: Path, more: tuple[str, ...]
) -> None:
    def interrupted(terminal: Terminal) -> tuple[int, str]:
        terminal.until(b"the end")
        assert len(list(tmp_path.glob(".out*"))) == 1
        terminal.type(b"\x03")
        return terminal.end()

    status, out = await run(interrupted, "export", "web", str(tmp_path / "out"), *more)
    assert status == 130 and "Traceback" not in out
    assert not list(tmp_path.glob("*out*"))


async def test_an_archive_for_a_terminal_is_refused(run: Callable[..., Any]) -> None:
    status, out = await run(Terminal.end, "export", "web", "-")
    assert status == 1 and "not for a terminal" in out
