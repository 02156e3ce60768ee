"""A netlink socket for interfaces: pyroute2's messages and its plain socket, one request after the other.

pyroute2's ``IPRoute`` runs an event loop for every request and looks at what it is told in many ways: 0.3
to 0.5 ms of CPU each, and pods wait for a dozen.  ``IPRSocket`` is the one that pyroute2 has for those who
put the messages together themselves.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from pyroute2 import IPRSocket
from pyroute2.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR

Message = Any
"""A netlink message; pyroute2 has no types for them."""


class Netlink:
    """A socket in the network namespace of the thread that opens it; a context manager."""

    def __init__(self) -> None:
        # No multicast groups: this socket must not overflow with other people's events.
        # Strict: the kernel leaves out of a dump what was not asked for; decoding is what costs.
        self._socket = IPRSocket(groups=0, strict_check=True)
        self._socket.socket  # noqa: B018 - made at the first look, which must be now: the thread may move on

    def __enter__(self) -> Netlink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def request(self, kind: int, message: Message, flags: int = 0) -> list[Message]:
        """Ask for one thing, or have it changed; NetlinkError when the kernel refuses."""
        return self._exchange(kind, message, NLM_F_ACK | flags)

    def dump(self, kind: int, message: Message) -> list[Message]:
        """Ask for all that there are of a kind, as far as ``message`` narrows it; NetlinkError as above."""
        return self._exchange(kind, message, NLM_F_DUMP)

    def _exchange(self, kind: int, message: Message, flags: int) -> list[Message]:
        self._socket.put(message, kind, NLM_F_REQUEST | flags)
        answer: list[Message] = []
        while True:
            for part in self._socket.get():
                header = part["header"]
                if header["error"] is not None:
                    raise header["error"]
                if header["type"] in (NLMSG_ERROR, NLMSG_DONE):  # an error of 0 is the acknowledgement
                    return answer
                answer.append(part)
