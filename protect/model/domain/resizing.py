"""The part of the port to a hypervisor that changes the size of a domain while it runs."""

from __future__ import annotations

from typing import NewType, Protocol

from protect.model.domain.shares import CpuShares

DomainId = NewType("DomainId", int)
"""The hypervisor's number of a domain; on the fake, the pid of its first process."""


class Resizable(Protocol):
    """Sizes within what ``DomainSpec`` said; DomainGone for a domain that ended, or that there never was.

    What is set is held by the hypervisor from then on, and outlives this process.  What it tells the guest to
    do, the guest does later, or not at all: ``DomainInfo`` says how far it has come.
    """

    async def set_memory(self, domain: DomainId, memory_bytes: int) -> None:
        """Let the domain have so much.  Less: the guest is told to give the rest back, and can get no more.

        Invalid: more than its maximum; Exhausted: the host has not so much free; Refused: the guest is known
        not to be able to give so much back, and keeps what it may have.
        """
        ...

    async def set_vcpus(self, domain: DomainId, vcpus: int) -> None:
        """Have the guest run so many of its vCPUs, and hold all of them to what so many could run.

        Invalid: none, or more than its maximum.
        """
        ...

    async def set_shares(self, domain: DomainId, shares: CpuShares) -> None:
        """Hold its share of CPUs from now on; where that cannot be, ``physical_info`` has a notice."""
        ...
