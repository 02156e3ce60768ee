"""A vchan ring as a byte stream: a ``Transport``."""

from __future__ import annotations

import asyncio

from xenbind.vchan import VchanClient

_LARGEST_BYTES = 65536


class VchanTransport:
    """Reads and writes without blocking.  The guest owns the ring: its content is hostile.

    A dead guest does not close its ring: whoever learns of the death calls ``ended``.  Reads then return the
    ring's remaining bytes, and the end.
    """

    def __init__(self, client: VchanClient) -> None:
        self._client: VchanClient | None = client
        self._fd = client.fd
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(_LARGEST_BYTES)
        self._waiting: set[asyncio.Future[None]] = set()
        self._ended = False

    async def read(self, limit: int) -> bytes:
        """See port.Transport."""
        view = memoryview(self._buffer)[: min(limit, _LARGEST_BYTES)]
        while self._client is not None:
            count = self._client.read_into(view)
            if count is None or (count == 0 and self._ended):
                return b""
            if count:
                return bytes(view[:count])
            await self._change()
        return b""

    async def write(self, data: bytes) -> None:
        """See port.Transport."""
        rest = memoryview(data)
        while rest:
            if self._client is None or self._ended:
                raise ConnectionResetError("the vchan is closed")
            count = self._client.write(rest)
            if count is None:
                raise ConnectionResetError("the agent closed the vchan")
            rest = rest[count:]
            if rest and not count:
                await self._change()

    async def close(self) -> None:
        """See port.Transport."""
        self.disconnect()

    def disconnect(self) -> None:
        """Unmap the guest's pages; until then a destroyed guest stays as a zombie."""
        client, self._client = self._client, None
        if client is not None:
            self._loop.remove_reader(self._fd)
            client.close()
            self._wake()

    def ended(self) -> None:
        """Mark the guest as dead: after the ring's remaining bytes comes the end."""
        self._ended = True
        self._wake()

    async def _change(self) -> None:
        """Wait until the other side acts, the guest ends, or we close.

        The event channel stays masked without waiters: a guest cannot keep us busy then.  Nor can it between
        a waiter's wake-up and its turn.
        """
        if self._client is None or self._ended:
            return
        self._loop.add_reader(self._fd, self._on_event)
        future = self._loop.create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            if not self._waiting and self._client is not None:
                self._loop.remove_reader(self._fd)

    def _on_event(self) -> None:
        if self._client is not None:
            self._client.consume()
            self._loop.remove_reader(self._fd)
        self._wake()

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
