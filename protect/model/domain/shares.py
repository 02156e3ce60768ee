"""A zone's share of the host's CPUs and disks, held by the host whatever it does in its own groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass

WEIGHTS = range(1, 65_536)
"""What Xen's credit schedulers take."""
CPU_WEIGHT = 256
"""What stands for one CPU: Xen's default for a domain, whose vCPUs have it each."""
DOM0_WEIGHT = 2 * CPU_WEIGHT
"""What dom0 should have: more than any vCPU of a zone, and no more than needed.

A vCPU of credit2 runs for 1 ms at least, and its credit stays between -10 and 10 ms by the count of the
largest weight in use.  So weights below a twentieth of it are all alike (Xen 4.17, ``CSCHED2_CREDIT_MIN``).
"""
CPU_PERCENT = 100
MOST_DISK_RATE = 2**50


@dataclass(frozen=True, slots=True)
class CpuShares:
    """What all vCPUs of a zone get together.

    ``weight`` counts while CPUs are short: a zone gets its part of the sum of the weights, and 256 stands for
    one CPU.  ``cap`` is in percent of one CPU, also while others are idle; 0: as much as its vCPUs can run.
    """

    weight: int = CPU_WEIGHT
    cap: int = 0

    def binding_cap(self, vcpus: int, most_vcpus: int = 0) -> int:
        """The cap, 0 when that many vCPUs cannot run so much anyway.

        Of ``most_vcpus`` that a guest could start by itself, ``vcpus`` are its own: the others add nothing.
        """
        cap = min(self.cap or vcpus * CPU_PERCENT, vcpus * CPU_PERCENT)
        return cap if cap < max(vcpus, most_vcpus) * CPU_PERCENT else 0

    def vcpu_weight(self, vcpus: int) -> int:
        """The part of one of ``vcpus``, for schedulers that weigh each by itself; at most a whole CPU's.

        A vCPU cannot run on more than one CPU, so that a greater weight could only hold up the host's own.
        """
        return min(max(round(self.weight / vcpus), WEIGHTS[0]), CPU_WEIGHT)


@dataclass(frozen=True, slots=True)
class DiskRates:
    """What a zone does at most with each of its disks in a second; 0: no limit."""

    read_bytes: int = 0
    write_bytes: int = 0
    read_operations: int = 0
    write_operations: int = 0

    def __bool__(self) -> bool:
        return any(astuple(self))

    def within(self, most: DiskRates) -> DiskRates:
        """The lower one of each two."""
        return DiskRates(*(min(mine or other, other or mine) for mine, other in self._beside(most)))

    def exceeds(self, most: DiskRates) -> bool:
        """Whether a limit of ``most`` is raised."""
        return any(0 < other < mine for mine, other in self._beside(most))

    def _beside(self, other: DiskRates) -> Iterator[tuple[int, int]]:
        return zip(astuple(self), astuple(other), strict=True)
