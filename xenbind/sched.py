"""Xen's scheduler, and the weight and cap of domains (xl(1), sched-credit2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

from xenbind.context import Context, struct
from xenbind.raw import ffi, names


class Scheduler(Enum):
    """The names of libxl_scheduler."""

    UNKNOWN = "UNKNOWN"
    SEDF = "SEDF"
    CREDIT = "CREDIT"
    CREDIT2 = "CREDIT2"
    ARINC653 = "ARINC653"
    RTDS = "RTDS"
    NULL = "NULL"

    @property
    def weighs(self) -> bool:
        """Whether domains have a weight and a cap under this scheduler."""
        return self in (Scheduler.CREDIT, Scheduler.CREDIT2)


@dataclass(frozen=True, slots=True)
class Params:
    """``weight``: 1 to 65535, of each vCPU; ``cap``: percent of a CPU, for all vCPUs together; 0: no cap."""

    weight: int
    cap: int


@cache
def _schedulers() -> dict[int, str]:
    return names("libxl_scheduler", "LIBXL_SCHEDULER_")


def scheduler(context: Context) -> Scheduler:
    """Scheduler of the pool for new domains; UNKNOWN for an unknown number."""
    return Scheduler(_schedulers().get(context.call("libxl_get_scheduler"), "UNKNOWN"))


def params(context: Context, domid: int) -> Params:
    """Of a domain.  DomainNotFound, or another XenError where the scheduler has none."""
    with struct("libxl_domain_sched_params") as found:
        context.call("libxl_domain_sched_params_get", domid, found, subject=f"domain {domid}")
        return Params(found.weight, found.cap)


def set_params(context: Context, domid: int, wanted: Params) -> None:
    """Set a domain's parameters.  InvalidConfig for a cap beyond the reach of its vCPUs."""
    with struct("libxl_domain_sched_params") as given:
        given.weight, given.cap = wanted.weight, wanted.cap
        context.call("libxl_domain_sched_params_set", domid, given, subject=f"domain {domid}")


def pool_id(context: Context, name: str) -> int:
    """The number of a pool of CPUs.  XenError if no pool has the name."""
    found = ffi.new("uint32_t *")
    context.call("libxl_name_to_cpupoolid", name.encode(), found, subject=f"cpupool {name}")
    return int(found[0])
