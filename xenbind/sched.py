"""Which scheduler Xen runs, and the weight and cap of domains (xl(1), sched-credit2)."""

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
        """Whether its domains have a weight and a cap."""
        return self in (Scheduler.CREDIT, Scheduler.CREDIT2)


@dataclass(frozen=True, slots=True)
class Params:
    """``weight``: 1 to 65535, of each vCPU; ``cap``: percent of one CPU, of all vCPUs together; 0: none."""

    weight: int
    cap: int


@cache
def _schedulers() -> dict[int, str]:
    return names("libxl_scheduler", "LIBXL_SCHEDULER_")


def scheduler(context: Context) -> Scheduler:
    """Of the pool that domains begin in; UNKNOWN for one that is not in the list."""
    return Scheduler(_schedulers().get(context.call("libxl_get_scheduler"), "UNKNOWN"))


def params(context: Context, domid: int) -> Params:
    """Of a domain.  DomainNotFound, or another XenError where the scheduler has none."""
    with struct("libxl_domain_sched_params") as found:
        context.call("libxl_domain_sched_params_get", domid, found, subject=f"domain {domid}")
        return Params(found.weight, found.cap)


def set_params(context: Context, domid: int, wanted: Params) -> None:
    """Give a domain these.  InvalidConfig for a cap that its vCPUs could not reach."""
    with struct("libxl_domain_sched_params") as given:
        given.weight, given.cap = wanted.weight, wanted.cap
        context.call("libxl_domain_sched_params_set", domid, given, subject=f"domain {domid}")


def pool_id(context: Context, name: str) -> int:
    """The number of a pool of CPUs.  XenError when there is none of that name."""
    found = ffi.new("uint32_t *")
    context.call("libxl_name_to_cpupoolid", name.encode(), found, subject=f"cpupool {name}")
    return int(found[0])
