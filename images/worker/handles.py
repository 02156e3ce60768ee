"""Orders from the daemon to the workers' parent: a kind, a tenant, a text, and any number of descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from images.worker.cpu_accounts import HOST, TENANT_BYTES

# Limit for one message: Linux carries 253 (SCM_MAX_FD).
_MOST_HANDLES = 250
_LEFT = 4
_HEAD = _LEFT + 1 + TENANT_BYTES
_TEXT = 1 << 16

WORKER, ONLINE, PROGRAM = b"w", b"o", b"p"
"""A worker without network, a worker with network, and a program of the host."""


class Given(NamedTuple):
    """A received order; the receiver owns the handles."""

    kind: bytes
    tenant: bytes
    text: bytes
    handles: list[int]


def send_order(
    control: socket.socket,
    handles: Sequence[int],
    kind: bytes = WORKER,
    text: bytes = b"",
    tenant: bytes = HOST,
) -> None:
    """Send an order over a socket that preserves message boundaries; tenant: its ``tenant_key``."""
    for at in range(0, len(handles), _MOST_HANDLES):
        part = handles[at : at + _MOST_HANDLES]
        left = len(handles) - at - len(part)
        socket.send_fds(control, [left.to_bytes(_LEFT, "little"), kind, tenant, text], part)


def receive_order(control: socket.socket) -> Given | None:
    """The next order; None if the sender has gone."""
    found: list[int] = []
    while True:
        said, handles, _, _ = socket.recv_fds(control, _TEXT, _MOST_HANDLES)
        found += handles
        if not said:
            for handle in found:
                os.close(handle)
            return None
        if not int.from_bytes(said[:_LEFT], "little"):
            return Given(said[_LEFT : _LEFT + 1], said[_LEFT + 1 : _HEAD], said[_HEAD:], found)
