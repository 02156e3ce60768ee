"""A zone's file server (hostc/fileserver) on a socket."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.share.client import NinePClient

SECONDS = 60.0


class ShareServer:
    """A running server, and the connection to the server."""

    def __init__(self, program: Path, namespace: Path, directory: Path, cgroups: Sequence[Path] = ()) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        ours, theirs = socket.socketpair()
        ours.settimeout(SECONDS)
        command = [str(program), "--namespace", str(namespace), "--dir", str(directory), "--session", "s1"]
        for group in cgroups:
            command += ["--cgroup", str(group)]
        command += ["--socket", str(theirs.fileno())]
        done = subprocess.run(
            command,
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        theirs.close()
        assert done.returncode == 0, done.stderr
        record = (directory / "pid").read_text().split()
        assert record[2] == "s1"
        self.pid = int(record[0])
        self.pidfd = os.pidfd_open(self.pid)
        self.client = NinePClient(ours)

    def status(self, key: str) -> str:
        """A line of /proc/<pid>/status."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(key + ":"))

    def wait_end(self) -> str:
        """The last line of the log."""
        assert select.select([self.pidfd], [], [], SECONDS)[0], "it goes on"
        return (self.directory / "log").read_text().strip().rpartition("\n")[2]

    def alive(self) -> bool:
        return not select.select([self.pidfd], [], [], 0)[0]

    def stop(self) -> None:
        self.client.close()
        if self.alive():
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            select.select([self.pidfd], [], [], SECONDS)
        os.close(self.pidfd)
