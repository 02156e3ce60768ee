"""Makes a reservation for each claim prepared by the kubelet, and releases it when the claim is unprepared.

The reservation is the only record: protectd keeps it, under the claim's uid, over restarts and reboots.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from cluster.dra.claims.claim import (
    PREPARE,
    Allocation,
    Consumer,
    WantedClaim,
    allocation,
    consumers,
    devices_of,
)
from cluster.dra.claims.turns import ClaimTurns
from cluster.dra.config import DraConfig
from cluster.dra.model import HOST_DEVICE, HostDevice, Promise
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Missing
from daemonkit.logs import fields

log = logging.getLogger(__name__)


class ClaimSource(Protocol):
    """The API server."""

    async def claim(self, namespace: str, name: str) -> dict[str, object] | None:
        """A ResourceClaim; None: no such claim.  Unreachable, Denied."""


class Reservations(Protocol):
    """protectd."""

    async def make(self, wanted: Promise) -> None:
        """Make a reservation, or add pods to it.  Exhausted: no room; Exists: reserved with another size."""

    async def devices(self) -> Sequence[HostDevice]:
        """The host devices available to claims."""

    async def release(self, claim_uid: str) -> None:
        """Release a reservation; an unknown claim succeeds."""


class Slice(Protocol):
    """The node's offer to claims."""

    def claimed(self, device: str) -> None:
        """A claim has this device, prepared or refused."""

    def released(self) -> None:
        """A claim has released its device."""


class Refusals(Protocol):
    """Tells users why a pod does not start."""

    def tell(self, claim: WantedClaim, pods: Sequence[Consumer], cause: str) -> None:
        """Report that a claim could not be prepared for its pods."""


class Claims:
    """Prepares and unprepares claims; calls for the same uid take turns (``ClaimTurns``)."""

    def __init__(
        self,
        config: DraConfig,
        source: ClaimSource,
        reservations: Reservations,
        offered: Slice,
        refusals: Refusals,
        turns: ClaimTurns,
    ) -> None:
        self._config = config
        self._source = source
        self._reservations = reservations
        self._offered = offered
        self._refusals = refusals
        self._turns = turns

    async def prepare(self, namespace: str, name: str, uid: str) -> Allocation:
        """Reserve a claim's allocation.  A repeated call only adds pods.

        Raises the faults of ``claim.allocation`` and ``Reservations.make``.
        """
        config = self._config
        wanted = WantedClaim(namespace, name, uid, config.driver, config.node_name, config.sizes)
        pods: Sequence[Consumer] = ()
        async with self._turns.of(uid):
            try:
                found = await self._source.claim(namespace, name)
                if found is None:
                    raise Missing(PREPARE, str(wanted), "the API server has no such claim")
                pods = tuple(consumers(found))
                allocated = await self._reserve(wanted, found)
            except Fault as fault:
                self._refusals.tell(wanted, pods, str(fault))
                raise
        log.info("claim prepared", extra=fields(claim=str(wanted), uid=uid, bytes=allocated.total_bytes))
        return allocated

    async def unprepare(self, uid: str) -> None:
        """Release a claim's reservation; the claim itself may be gone by now."""
        async with self._turns.of(uid):
            await self._reservations.release(uid)
            checkpoint("unprepare-claim.released")
        self._offered.released()
        log.info("claim released", extra=fields(uid=uid))

    async def _reserve(self, wanted: WantedClaim, untrusted_claim: Mapping[str, Any]) -> Allocation:
        names = tuple(devices_of(wanted, untrusted_claim))
        try:
            if any(name.startswith(HOST_DEVICE) for name in names):
                known = await self._reservations.devices()
                by_name = {one.slice_name(wanted.pool): one.name for one in known}
                wanted = replace(wanted, host_devices=by_name)
            allocated = allocation(wanted, untrusted_claim)
            checkpoint("prepare-claim.read")
            # Admin access uses devices of other claims, and takes nothing.
            if allocated.total_bytes or allocated.host_devices:
                await self._reservations.make(_promise(wanted, allocated))
        finally:
            for name in names:
                self._offered.claimed(name)
        checkpoint("prepare-claim.reserved")
        return allocated


def _promise(wanted: WantedClaim, of: Allocation) -> Promise:
    return Promise(of.uid, of.total_bytes, of.pod_uids, of.device, of.host_devices, str(wanted))
