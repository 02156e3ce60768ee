"""Listens in the network of a fake zone."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.support.agent.zone_client import DEADLINE

# A socket belongs to the network namespace of its creation. The program makes a socket in the zone, and hands
# the socket over.
LISTEN = """
import socket, sys
family, address, port, backlog, channel = sys.argv[1:]
listener = socket.create_server((address, int(port)), family=int(family), backlog=int(backlog))
socket.send_fds(socket.socket(fileno=int(channel)), [b"x"], [listener.fileno()])
"""


def listen(zone_pid: int, port: int, address: str = "127.0.0.1", backlog: int = 256) -> socket.socket:
    """A listening socket in the zone's network."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arguments = (str(int(family)), address, str(port), str(backlog), str(theirs.fileno()))
        command = ["nsenter", f"--net=/proc/{zone_pid}/ns/net", sys.executable, "-c", LISTEN, *arguments]
        subprocess.run(command, check=True, pass_fds=[theirs.fileno()])
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    listener = socket.socket(fileno=fd)
    listener.settimeout(DEADLINE)
    return listener
