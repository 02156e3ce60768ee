"""Open descriptors from the daemon to the workers' parent, which may be more than one message carries."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

# Linux carries 253 with a message (SCM_MAX_FD).
_MOST = 250
_LEFT = 4


def send(control: socket.socket, handles: Sequence[int]) -> None:
    """Send all of them, over a socket that keeps messages apart."""
    for at in range(0, len(handles), _MOST):
        part = handles[at : at + _MOST]
        left = len(handles) - at - len(part)
        socket.send_fds(control, [left.to_bytes(_LEFT, "little")], part)


def receive(control: socket.socket) -> list[int]:
    """The handles of one send(); none if the sender has gone."""
    found: list[int] = []
    left = -1
    while left:
        said, handles, _, _ = socket.recv_fds(control, _LEFT, _MOST)
        found += handles
        if not said:
            for handle in found:
                os.close(handle)
            return []
        left = int.from_bytes(said, "little")
    return found
