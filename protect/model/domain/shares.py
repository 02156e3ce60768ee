"""A zone's share of the host's CPUs and disks.  The host enforces the share, whatever the guest does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass

WEIGHTS = range(1, 65_536)
"""Weights that Xen's credit schedulers accept."""
CPU_WEIGHT = 256
"""Weight of one CPU: Xen's default for a domain, where each vCPU has this weight."""
DOM0_WEIGHT = 2 * CPU_WEIGHT
"""Recommended weight of dom0: more than any vCPU of a zone, and no more than needed.

A vCPU of credit2 runs for at least 1 ms, and its credit stays between -10 and 10 ms, scaled by the largest
weight in use.  Weights below a twentieth of the largest all act alike (Xen 4.17, ``CSCHED2_CREDIT_MIN``).
"""
CPU_PERCENT = 100
MOST_DISK_RATE = 2**50


@dataclass(frozen=True, slots=True)
class CpuShares:
    """The share of all vCPUs of a zone together.

    ``weight`` counts while CPUs are short: a zone gets its part of the sum of the weights, and 256 stands for
    one CPU.  ``cap``: percent of one CPU, also while other zones are idle; 0: no cap.
    """

    weight: int = CPU_WEIGHT
    cap: int = 0

    def binding_cap(self, vcpus: int, most_vcpus: int = 0) -> int:
        """The cap for the scheduler; 0 if the vCPUs cannot exceed the cap.

        A guest can start ``most_vcpus`` by itself, but may use only the CPU time of ``vcpus``.
        """
        cap = min(self.cap or vcpus * CPU_PERCENT, vcpus * CPU_PERCENT)
        return cap if cap < max(vcpus, most_vcpus) * CPU_PERCENT else 0

    def vcpu_weight(self, vcpus: int) -> int:
        """The weight of each of ``vcpus``, for schedulers with a weight per vCPU; at most ``CPU_WEIGHT``.

        A vCPU runs on one CPU at a time: a greater weight could only delay the host's own work.
        """
        return min(max(round(self.weight / vcpus), WEIGHTS[0]), CPU_WEIGHT)


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Limits of a zone per second and disk; 0: no limit."""

    read_bytes: int = 0
    write_bytes: int = 0
    read_operations: int = 0
    write_operations: int = 0

    def __bool__(self) -> bool:
        return any(astuple(self))

    def within(self, most: DiskRates) -> DiskRates:
        """The lower limit of each pair."""
        return DiskRates(*(min(mine or other, other or mine) for mine, other in self._beside(most)))

    def exceeds(self, most: DiskRates) -> bool:
        """Whether a limit of ``most`` is raised."""
        return any(0 < other < mine for mine, other in self._beside(most))

    def _beside(self, other: DiskRates) -> Iterator[tuple[int, int]]:
        return zip(astuple(self), astuple(other), strict=True)
