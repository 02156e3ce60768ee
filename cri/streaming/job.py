"""The jobs of the streaming server."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from cri.streaming.http.handshake import Request
from cri.streaming.http.negotiate import Chosen
from cri.streaming.transport.wire import ClientWire


class StreamJob(Protocol):
    """The job behind a URL, served when its client comes."""

    @property
    def kind(self) -> str:
        """The first part of the URL's path."""
        ...

    @property
    def subject(self) -> str:
        """The container's or sandbox's id, for the log."""
        ...

    @property
    def pod(self) -> str:
        """The id of the sandbox whose share the job uses."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace of the pod, for its share of pools."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the request.  The request waits with the job."""
        ...

    def negotiate(self, request: Request) -> Chosen[Any]:
        """Choose a transport and sub-protocol; Bad: none in common."""
        ...

    async def serve(
        self, wire: ClientWire, chosen: Chosen[Any], stream_timeout: float, stopping: asyncio.Event
    ) -> None:
        """Serve until the job ends, the client leaves, or the client knows that the server stops."""
        ...
