"""The events of containers and pods, by GetContainerEvents."""

from __future__ import annotations

import asyncio
from typing import Any

from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

DEADLINE = 60.0
PATIENCE = 300.0
"""Seconds to wait for the end of a container; software emulation is slow."""


class Events:
    """A subscription."""

    def __init__(self, client: Client) -> None:
        self._call: Any = client.runtime.GetContainerEvents(cri.GetEventsRequest())

    async def next(self, count: int) -> list[cri.ContainerEventResponse]:
        async with asyncio.timeout(DEADLINE):
            return [await self._call.read() for _ in range(count)]

    def close(self) -> None:
        self._call.cancel()


class Ends:
    """Notes the end of every container by GetContainerEvents, while the block runs."""

    def __init__(self, client: Client) -> None:
        self._call: Any = client.runtime.GetContainerEvents(cri.GetEventsRequest())
        self._ends: dict[str, asyncio.Event] = {}
        self._listening = asyncio.ensure_future(self._listen())

    async def of(self, container: str) -> None:
        """Wait until the container has ended."""
        end = asyncio.ensure_future(self._ends.setdefault(container, asyncio.Event()).wait())
        done, _ = await asyncio.wait(
            [end, self._listening], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED
        )
        end.cancel()
        if self._listening in done:
            self._listening.result()
        if end not in done:
            raise AssertionError(f"no STOPPED event of {container}")

    async def close(self) -> None:
        self._call.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self) -> None:
        async for event in self._call:
            if event.container_event_type == cri.CONTAINER_STOPPED_EVENT:
                self._ends.setdefault(event.container_id, asyncio.Event()).set()
