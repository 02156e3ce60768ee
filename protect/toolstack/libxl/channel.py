"""Connections to agents by epoch (docs/channel.md): each epoch's ring serves one connection."""

from __future__ import annotations

import asyncio
import logging
import re

from daemonkit.backoff import Backoff
from daemonkit.tasks import join
from protect.model.errors import ProtocolViolation
from protect.toolstack.libxl.capacity.rings import CHANNEL_ORDER
from protect.toolstack.libxl.transport import VchanTransport
from protect.toolstack.libxl.xenstore.store import AsyncStore
from xenbind.errors import RingsTooLarge
from xenbind.vchan import VchanClient

log = logging.getLogger(__name__)

_FREE_LOOKS = 8
"""Number of undelayed polls of a guest's epoch; an honest agent needs two."""
_LONGEST_DELAY_SECONDS = 5.0
"""Longest delay between two polls, in seconds."""
_EPOCH = re.compile(rb"[1-9][0-9]{0,8}")


class VchanChannels:
    """Opens and keeps the connections to domains."""

    def __init__(self, store: AsyncStore, stale: float) -> None:
        self._store = store
        self._stale = stale
        self._open: dict[int, VchanTransport] = {}
        self._used: dict[int, int] = {}  # our own record: the guest can overwrite agent-used

    async def connect(self, domid: int) -> VchanTransport:
        """Wait for the agent's next epoch and connect to it; the caller sets the deadline.

        ProtocolViolation: the rings are larger than an agent's.
        """
        self.disconnect(domid)
        data = f"/local/domain/{domid}/data"
        used = max(self._used.get(domid, 0), _number(await self._store.read(f"{data}/agent-used")))
        tries = _Tries(domid)
        async with self._store.watch(f"{data}/agent-epoch") as changed:
            while True:
                epoch = await self._next(changed, data, used, tries)
                if epoch == used:
                    await self._knock(domid, epoch, tries)
                    continue
                used = self._used[domid] = epoch
                await self._store.write_below(data, "agent-used", str(epoch))
                client = await self._client(domid, epoch, tries)
                if client is not None:
                    transport = self._open[domid] = VchanTransport(client)
                    return transport

    async def _next(self, changed: asyncio.Event, data: str, used: int, tries: _Tries) -> int:
        """The first epoch above ``used``, or ``used`` itself if the agent is stuck there.

        The agent is stuck if a daemon was killed between its claim of the epoch and its connection.
        """
        while True:
            # The guest may write this node at any rate, and may name rings that do not exist.
            await tries.pause()
            changed.clear()
            untrusted_epoch = _number(await self._store.read(f"{data}/agent-epoch"))
            if untrusted_epoch > used:
                return untrusted_epoch
            try:
                async with asyncio.timeout(self._stale if 0 < untrusted_epoch == used else None):
                    await changed.wait()
            except TimeoutError:
                return used

    async def _knock(self, domid: int, epoch: int, tries: _Tries) -> None:
        """Connect and disconnect: the agent sees its client leave, and serves the next epoch."""
        client = await self._client(domid, epoch, tries)
        if client is not None:
            client.close()

    async def _client(self, domid: int, epoch: int, tries: _Tries) -> VchanClient | None:
        path = f"/local/domain/{domid}/data/agent/{epoch}"
        connecting = asyncio.ensure_future(asyncio.to_thread(VchanClient, domid, path, CHANNEL_ORDER))
        try:
            return await join(connecting)
        except RingsTooLarge as error:
            raise ProtocolViolation("connect", f"domain {domid}", str(error.strerror)) from error
        except OSError as error:
            tries.failed(epoch, error)
            return None
        except asyncio.CancelledError:
            connecting.add_done_callback(_discard)
            raise

    def ended(self, domid: int) -> None:
        """Mark the domain as dead: its ring can be read to its end, but receives nothing more."""
        if transport := self._open.get(domid):
            transport.ended()

    def disconnect(self, domid: int) -> None:
        """Close a domain's connection, if any."""
        if transport := self._open.pop(domid, None):
            transport.disconnect()

    def forget(self, domid: int) -> None:
        """Forget a destroyed domain; Xen may reuse its number."""
        self.disconnect(domid)
        self._used.pop(domid, None)

    def close(self) -> None:
        """Close all connections."""
        for domid in list(self._open):
            self.disconnect(domid)


class _Tries:
    """The attempts of one ``connect``, with growing delays; the first failure is logged."""

    def __init__(self, domid: int) -> None:
        self._backoff = Backoff(longest=_LONGEST_DELAY_SECONDS)
        self._free = _FREE_LOOKS
        self._domid = domid
        self._told = False

    async def pause(self) -> None:
        """Wait before the next poll of the guest's epoch."""
        if self._free:
            self._free -= 1
        else:
            await asyncio.sleep(self._backoff.delay())

    def failed(self, epoch: int, error: OSError) -> None:
        level = logging.DEBUG if self._told else logging.WARNING
        self._told = True
        log.log(level, "domain %d offers no usable vchan as epoch %d: %s", self._domid, epoch, error)


def _discard(connecting: asyncio.Future[VchanClient]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


def _number(untrusted: bytes | None) -> int:
    """Read an epoch; 0: missing or invalid."""
    return int(untrusted) if untrusted is not None and _EPOCH.fullmatch(untrusted) else 0
