"""Tells the service manager how the daemon is: sd_notify(3) over NOTIFY_SOCKET, without libsystemd."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(state: str = "READY=1") -> bool:
    """Send ``state`` (lines of ``KEY=value``); False when no service manager listens.

    A manager that cannot be reached is logged and otherwise ignored: it must not end the daemon.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        # A full receive queue must not block the event loop.
        sock.setblocking(False)
        try:
            sock.sendto(state.encode(), address)
        except OSError as error:
            log.warning("the service manager was not told %s: %s", state.split("\n")[0], error)
            return False
    return True


def ready(status: str = "") -> bool:
    """The daemon serves."""
    return notify(f"READY=1\nSTATUS={status}" if status else "READY=1")


def stopping() -> bool:
    """The daemon has begun to stop."""
    return notify("STOPPING=1")
