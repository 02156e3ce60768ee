"""The service manager's watchdog (sd_notify(3), WATCHDOG=1): fed by the event loop itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DAEMON = """
import asyncio, os, sys
from daemonkit import lifecycle

def hang_in_a_pipe():
    sys.stdin.readline()
    print("hanging", flush=True)
    os.close(os.open(sys.argv[1], os.O_RDONLY))

async def serve(stop):
    lifecycle.notify_ready()
    asyncio.get_running_loop().add_reader(0, hang_in_a_pipe)
    await stop.wait()

sys.exit(lifecycle.run_until_signal(serve))
"""
PERIOD = 0.05


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's socket: the daemon's messages."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(60)
        yield sock


@contextmanager
def daemon(folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    os.mkfifo(folder / "pipe")
    own = {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": str(int(2e6 * PERIOD)), **environment}
    command = [sys.executable, "-c", DAEMON, str(folder / "pipe")]
    with subprocess.Popen(
        command,
        env=os.environ | own,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def hang(process: subprocess.Popen[str]) -> None:
    assert process.stdin and process.stdout
    process.stdin.write("now\n")
    process.stdin.flush()
    assert process.stdout.readline() == "hanging\n"


def heard(manager: socket.socket, seconds: float) -> list[bytes]:
    """Read messages until none comes for the given time."""
    found = []
    manager.settimeout(seconds)
    while True:
        try:
            found.append(manager.recv(100))
        except TimeoutError:
            manager.settimeout(60)
            return found


def test_watchdog_is_fed_only_while_the_loop_turns(manager: socket.socket, tmp_path: Path) -> None:
    with daemon(tmp_path) as process:
        while manager.recv(100) != b"READY=1":
            pass
        assert [manager.recv(100) for _ in range(5)] == [b"WATCHDOG=1"] * 5
        hang(process)
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            while manager.recv(100):  # earlier messages
                pass
        assert heard(manager, 20 * PERIOD) == []
        (tmp_path / "pipe").write_text("")
        assert manager.recv(100) == b"WATCHDOG=1"
        process.terminate()
        assert process.wait(60) == 0


def test_daemon_ended_by_the_watchdog_logs_the_hanging_line(manager: socket.socket, tmp_path: Path) -> None:
    with daemon(tmp_path) as process:
        assert manager.recv(100)
        hang(process)
        process.send_signal(signal.SIGABRT)  # systemd.service(5), WatchdogSignal=
        assert process.wait(60) == -signal.SIGABRT
        assert process.stderr and "hang_in_a_pipe" in process.stderr.read()


@pytest.mark.parametrize("wanted", [{"WATCHDOG_USEC": ""}, {"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}])
def test_nobody_is_told_who_does_not_want_to_be(
    manager: socket.socket, tmp_path: Path, wanted: dict[str, str]
) -> None:
    with daemon(tmp_path, **wanted) as process:
        assert manager.recv(100) == b"READY=1"
        process.terminate()
        assert process.wait(60) == 0
        assert heard(manager, PERIOD) == [b"STOPPING=1"]
