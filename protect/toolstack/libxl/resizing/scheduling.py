"""Zones' shares of CPUs, enforced by Xen's scheduler, and notices about its limits."""

from __future__ import annotations

import logging

from protect.model.domain.shares import CPU_WEIGHT, DOM0_WEIGHT, CpuShares
from protect.toolstack.libxl.workers import Workers
from xenbind import domain as xen
from xenbind import errors, sched
from xenbind.context import Context
from xenbind.sched import Params, Scheduler

log = logging.getLogger(__name__)

_DOM0 = 0


class Scheduling:
    """Sets weights and caps if the scheduler is credit2 or credit; does nothing for other schedulers."""

    def __init__(self, workers: Workers, scheduler: Scheduler) -> None:
        self._workers = workers
        self._scheduler = scheduler
        for notice in self._lacks():
            log.warning("%s", notice)

    async def set(self, domid: int, shares: CpuShares, vcpus: int) -> None:
        """Set a domain's shares.  ``vcpus``: its vCPUs in use.  XenError; DomainNotFound: no such domain."""
        if self._scheduler.weighs:
            await self._workers.run(_set, domid, shares, vcpus)

    async def raise_dom0(self, weight: int) -> None:
        """Give dom0 at least this weight; 0 changes nothing.  A failure is logged, and a notice shows it."""
        if weight and self._scheduler.weighs:
            try:
                await self._workers.run(_raise_dom0, weight)
            except errors.XenError as error:
                log.error("dom0's CPU weight is not raised: %s", error)

    async def notices(self) -> tuple[str, ...]:
        """Notices for the operator, with dom0's present weight."""
        if not self._scheduler.weighs:
            return self._lacks()
        try:
            weight = (await self._workers.ask(sched.params, _DOM0)).weight
        except errors.XenError as error:
            return (f"dom0's CPU weight cannot be read: {error}",)
        return () if weight > CPU_WEIGHT else (dom0_notice(self._scheduler, weight),)

    def _lacks(self) -> tuple[str, ...]:
        if self._scheduler.weighs:
            return ()
        name = self._scheduler.value.lower()
        return (
            f"zones' CPU weights and caps are not held: Xen's scheduler is {name}, which has none"
            " (sched=credit2 on Xen's command line)",
        )


def dom0_notice(scheduler: Scheduler, weight: int) -> str:
    """Text about a low dom0 weight.  dom0 serves disks and networks; zones must not delay it."""
    return (
        f"dom0's CPU weight is {weight}, and a vCPU of a zone can have {CPU_WEIGHT}: "
        f"xl sched-{scheduler.value.lower()} -d 0 -w {DOM0_WEIGHT} gives dom0 precedence"
    )


def _set(context: Context, domid: int, shares: CpuShares, vcpus: int) -> None:
    # Both schedulers weigh each vCPU separately: more vCPUs must not give a zone more weight.
    most = xen.info(context, domid).vcpus
    sched.set_params(context, domid, Params(shares.vcpu_weight(vcpus), shares.binding_cap(vcpus, most)))


def _raise_dom0(context: Context, weight: int) -> None:
    has = sched.params(context, _DOM0)
    if has.weight < weight:
        sched.set_params(context, _DOM0, Params(weight, has.cap))
        log.info("dom0's CPU weight is %d, it was %d", weight, has.weight)
