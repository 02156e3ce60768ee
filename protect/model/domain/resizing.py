"""The port to a hypervisor: changing the size of a running domain."""

from __future__ import annotations

from typing import NewType, Protocol

from protect.model.domain.shares import CpuShares

DomainId = NewType("DomainId", int)
"""The hypervisor's number of a domain; on the fake, the pid of its first process."""


class Resizable(Protocol):
    """Changes sizes within the bounds of ``DomainSpec``.  DomainGone: the domain ended or never existed.

    The hypervisor holds the new values, also after this process ends.  The guest follows later or not at all;
    ``DomainInfo`` shows the progress.
    """

    async def set_memory(self, domain: DomainId, memory_bytes: int) -> None:
        """Set the allowed memory.  If less than now, the guest is told to give the difference back.

        Invalid: more than the domain's maximum.  Exhausted: the host lacks free memory.  Refused: the guest
        is known to need more; the allowed memory stays.
        """
        ...

    async def set_vcpus(self, domain: DomainId, vcpus: int) -> None:
        """Set the online vCPUs, and cap the domain at that many CPUs.

        Invalid: 0, or more than the domain's maximum.
        """
        ...

    async def set_shares(self, domain: DomainId, shares: CpuShares) -> None:
        """Set the share of CPUs.  If the host cannot hold shares, ``physical_info`` has a notice."""
        ...
