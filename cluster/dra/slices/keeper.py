"""Keeps the node's ResourceSlice up to date; writes only after a change of its devices.

In the shared mode claims do not change the slice: the scheduler subtracts their use.  The slice changes with
the memory of zones without claims, with the host's memory, and when protectd goes or comes back.  In the
split mode the slice also changes with each claim.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from cluster.dra.config import DraConfig, SliceMode
from cluster.dra.model import HostDevice, Promise, ZoneMemory
from cluster.dra.slices import offer
from cluster.dra.slices.document import (
    MAPPINGS,
    Attributes,
    Document,
    NodeSlice,
    SliceVersion,
    devices,
    document,
    generation,
    shared_device,
    unclaimed_device,
)
from daemonkit.backoff import Backoff
from daemonkit.faults import Fault, Unsupported
from daemonkit.logs import fields

log = logging.getLogger(__name__)

_LONGEST_SECONDS = 300.0
_DEVICE, _SHARED = "memory-", "memory-shared-"
"""Prefixes of device names: of a device for one claim, and of the shared device of all claims."""
_AWAY, _LOST = "protectd-away", "memory-lost"
"""Why devices take no new claims: the value of their taint."""
_LOOKS, _SOON = 2, 30.0
"""Number of readings of the slice after a kubelet has registered us, and the seconds between."""
_REMEMBERED = 64


class SliceStore(Protocol):
    """The API server."""

    async def node_uid(self, node: str) -> str: ...
    async def shares_capacity(self, trial: NodeSlice) -> bool: ...
    async def slice(self, name: str) -> Document | None: ...
    async def create(self, wanted: NodeSlice) -> Document: ...
    async def replace(self, wanted: NodeSlice, there: Document) -> Document: ...


class HostState(Protocol):
    """protectd."""

    async def all(self) -> Sequence[Promise]:
        """Each reservation."""

    async def devices(self) -> Sequence[HostDevice]:
        """The present named devices of the host."""


class SliceKeeper:
    """The slice of one node. ``told`` gets the devices' names, and the reason of bad health ("": healthy)."""

    def __init__(
        self,
        config: DraConfig,
        store: SliceStore,
        host: HostState,
        told: Callable[[tuple[str, ...], str], None],
    ) -> None:
        self._config = config
        self._store = store
        self._host = host
        self._told = told
        self._wanted = NodeSlice(
            config.driver, config.node_name, "", 0, (), config.sizes, {}, config.dom0_memory
        )
        self._mode: SliceMode | None = None
        self._memory: ZoneMemory | None = None
        self._held: Sequence[Promise] | None = None
        self._devices: Sequence[HostDevice] = ()
        self._device = ""
        self._refused: deque[str] = deque(maxlen=_REMEMBERED)
        self._there: Document | None = None
        self._sent: list[Document] | None = None
        self._written = ""
        self._changed = asyncio.Event()
        self._looks = 0
        self._wiped = False

    def show(self, memory: ZoneMemory | None, attributes: Attributes) -> None:
        """Take over protectd's report.  None: protectd is away; its last memory report still counts."""
        if memory is None:
            self._wanted = replace(self._wanted, unhealthy=_AWAY)
        else:
            self._memory = memory
            unhealthy = _LOST if memory.lost else ""
            self._wanted = replace(self._wanted, unhealthy=unhealthy, attributes=attributes)
        self._changed.set()
        self._tell()

    def claimed(self, device: str) -> None:
        """A claim has taken this device, prepared or refused: offer the next claim a new device."""
        if self._mode is SliceMode.SPLIT:
            if device == self._device:
                self._refused.append(device)
                self._device = _new_name()
            self._changed.set()

    def released(self) -> None:
        """A claim has released its device."""
        if self._mode is SliceMode.SPLIT:
            self._changed.set()

    def registered(self) -> None:
        """A kubelet has registered the driver.  A starting kubelet removes its node's slices, perhaps later.

        Source: kubernetes/pkg/kubelet/cm/dra/plugin.
        """
        self._wiped, self._looks = True, _LOOKS
        self._changed.set()

    async def keep(self) -> None:
        """Keep the slice for as long as the daemon runs; failures are retried with backoff."""
        backoff, said = Backoff(1.0, _LONGEST_SECONDS), ""
        backoff.delay()
        # The drivers of a whole cluster may start at once, as after a power cut or an update.
        await asyncio.sleep(self._interval * random.random())
        while True:
            self._changed.clear()
            if self._wiped:
                self._there, self._wiped = None, False
            try:
                if self._memory is not None:
                    await self.once()
            except Fault as fault:
                if str(fault) != said:
                    log.warning("%s", fault)
                said, pause = str(fault), backoff.delay()
                self._there = None
                await asyncio.sleep(pause)
                continue
            said = ""
            backoff.reset()
            backoff.delay()
            await asyncio.sleep(self._interval * random.uniform(0.8, 1.2))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience * random.uniform(0.8, 1.2)):
                    await self._changed.wait()
                    continue
            self._looks = max(0, self._looks - 1)
            self._there = None  # another client may have changed the slice

    async def once(self) -> None:
        """Write the slice if necessary.  Unsupported: the cluster cannot share a device."""
        if self._held is None or self._wanted.unhealthy != _AWAY:
            self._held, self._devices = await self._host.all(), await self._host.devices()
        if self._there is None:
            await self._adopt()
        wanted = self._wanted = self._offered(self._held)
        self._tell()
        said = devices(document(wanted, SliceVersion.V1))
        if self._there is not None and self._says(self._there, wanted, said):
            return
        there = self._there
        wanted = replace(wanted, generation=1 + max(wanted.generation, generation(there or {})))
        self._there = await (self._store.replace(wanted, there) if there else self._store.create(wanted))
        self._wanted = replace(self._wanted, generation=wanted.generation)
        self._sent, self._written = said, _version(self._there)
        log.info("slice written", extra=fields(slice=wanted.name, devices=len(wanted.devices)))

    @property
    def _interval(self) -> float:
        split = self._mode is SliceMode.SPLIT
        return self._config.split_interval if split else self._config.write_interval

    @property
    def _patience(self) -> float:
        """Seconds until the slice is read again in any case."""
        return min(_SOON, self._config.check_interval) if self._looks else self._config.check_interval

    def _offered(self, held: Sequence[Promise]) -> NodeSlice:
        """The wanted slice."""
        claimable = self._memory.claimable if self._memory else 0
        sizes, of_host = self._config.sizes, offer.of_host(self._devices, held)
        if self._mode is SliceMode.SHARED:
            found = offer.shared(self._device, claimable, held, sizes.step)
        else:
            if any(one.device == self._device for one in held):
                self._device = _new_name()
            found = offer.split(self._device, claimable, held, sizes, offer.MOST_DEVICES - len(of_host))
        return replace(self._wanted, devices=found, host_devices=of_host)

    async def _adopt(self) -> None:
        """Read the present slice, since devices keep their names over restarts."""
        if not self._wanted.node_uid:
            uid = await self._store.node_uid(self._wanted.node)
            self._wanted = replace(self._wanted, node_uid=uid)
        await self._settle_mode()
        self._there = await self._store.slice(self._wanted.name)
        if _version(self._there) != self._written:
            self._sent = None
        named = shared_device if self._mode is SliceMode.SHARED else unclaimed_device
        # Another instance of the driver may have written the slice, under the same name.
        name = named(self._there) if self._there is not None else ""
        if name and name not in self._refused:
            self._device = name
        if self._mode is SliceMode.SHARED:
            self._device = self._device or self._shared_already() or _new_name(_SHARED)
        self._device = self._device or _new_name()

    def _shared_already(self) -> str:
        """The name of the shared device of present claims; "": no claim has a shared device.

        A starting kubelet removes the slice, and the driver may restart before it has written a new slice.
        Under a new name, the present claims' use would be subtracted twice: here and by the scheduler.
        """
        return next((one.device for one in self._held or () if one.device.startswith(_SHARED)), "")

    async def _settle_mode(self) -> None:
        """Choose the mode.  In ``auto``, a choice of split is checked again at each look.

        An upgrade may give the cluster the feature while this daemon runs.
        """
        if self._mode is not None and (self._mode, self._config.mode) != (SliceMode.SPLIT, SliceMode.AUTO):
            return
        mode = await self._choose()
        if mode is not self._mode:
            self._mode = mode
            self._device = ""  # the name belongs to the other mode
            log.info("memory is offered", extra=fields(mode=mode.value))

    async def _choose(self) -> SliceMode:
        mode = self._config.mode
        if mode is SliceMode.SPLIT:
            return mode
        trial = replace(self._wanted, devices=offer.shared(_new_name(), 1 << 30, (), 1 << 20))
        if await self._store.shares_capacity(trial):
            return SliceMode.SHARED
        if mode is SliceMode.SHARED:
            cause = "several claims cannot consume one device's memory here"
            hint = "turn on the feature gate DRAConsumableCapacity, or set the mode to auto"
            raise Unsupported("publish", self._wanted.name, cause, hint)
        return SliceMode.SPLIT

    def _says(self, there: Document, wanted: NodeSlice, said: list[Document]) -> bool:
        """Whether an object has the wanted content with devices ``said``, or the part that the cluster keeps.

        Most clusters drop the claims' part of dom0.  A cluster that gains the feature gets the part with the
        next change.
        """
        found = devices(there)
        if not any(MAPPINGS in device for device in found):
            less = devices(document(replace(wanted, dom0_memory=0), SliceVersion.V1))
            return found == less or said == self._sent
        return said in (found, self._sent)

    def _tell(self) -> None:
        if names := self._wanted.device_names:
            self._told(names, self._wanted.unhealthy)


def _version(there: Document | None) -> str:
    """The resourceVersion of an object, or ""."""
    metadata = (there or {}).get("metadata")
    return str(metadata.get("resourceVersion", "")) if isinstance(metadata, dict) else ""


def _new_name(prefix: str = _DEVICE) -> str:
    return prefix + secrets.token_hex(4)
