"""Weights and caps on Xen: requests to its scheduler, and notices for an operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protect.model.domain.shares import CpuShares
from protect.toolstack.libxl.resizing.scheduling import Scheduling
from protect.toolstack.libxl.workers import Workers
from xenbind import errors
from xenbind.sched import Params, Scheduler

CONTEXT = object()


@dataclass
class FakeXen:
    """A hypervisor with dom0 and a domain 5, and the workers in front of the hypervisor."""

    vcpus: int = 1
    dom0: Params | None = field(default_factory=lambda: Params(256, 0))
    given: list[tuple[int, Params]] = field(default_factory=list)

    async def run(self, function: Any, *args: Any) -> Any:
        return function(CONTEXT, *args)

    ask = run

    def info(self, context: object, domid: int) -> SimpleNamespace:
        return SimpleNamespace(vcpus=self.vcpus)

    def params(self, context: object, domid: int) -> Params:
        if self.dom0 is None:
            raise errors.XenError("get", -3, "domain 0")
        return self.dom0

    def set_params(self, context: object, domid: int, wanted: Params) -> None:
        self.given.append((domid, wanted))
        if domid == 0:
            self.dom0 = wanted


@pytest.fixture
def xen(monkeypatch: pytest.MonkeyPatch) -> FakeXen:
    fake = FakeXen()
    monkeypatch.setattr("xenbind.domain.info", fake.info)
    monkeypatch.setattr("xenbind.sched.params", fake.params)
    monkeypatch.setattr("xenbind.sched.set_params", fake.set_params)
    return fake


def made(xen: FakeXen, scheduler: Scheduler) -> Scheduling:
    return Scheduling(cast(Workers, xen), scheduler)


@pytest.mark.parametrize("scheduler", [Scheduler.CREDIT, Scheduler.CREDIT2])
async def test_each_vcpu_has_its_part_of_the_weight(xen: FakeXen, scheduler: Scheduler) -> None:
    xen.vcpus = 4
    await made(xen, scheduler).set(5, CpuShares(512, 150), 4)
    await made(xen, scheduler).set(5, CpuShares(1, 400), 4)
    assert xen.given == [(5, Params(128, 150)), (5, Params(1, 0))]


async def test_offline_vcpus_add_nothing(xen: FakeXen) -> None:
    """A guest can start every vCPU of its creation, for any content of xenstore."""
    xen.vcpus = 4
    one = made(xen, Scheduler.CREDIT2)
    for shares in (CpuShares(), CpuShares(256, 150), CpuShares(256, 30)):
        await one.set(5, shares, 1)
    await one.set(5, CpuShares(256, 0), 4)
    assert [params for _, params in xen.given] == [
        Params(256, 100), Params(256, 100), Params(256, 30), Params(64, 0)
    ]  # fmt: skip


@pytest.mark.parametrize("scheduler", [Scheduler.NULL, Scheduler.RTDS, Scheduler.ARINC653, Scheduler.UNKNOWN])
async def test_a_scheduler_without_weights_is_told_nothing(xen: FakeXen, scheduler: Scheduler) -> None:
    one = made(xen, scheduler)
    await one.set(5, CpuShares(512, 150), 4)
    assert xen.given == []
    (notice,) = await one.notices()
    assert scheduler.value.lower() in notice and "sched=credit2" in notice


async def test_dom0_should_weigh_more_than_a_zone(xen: FakeXen) -> None:
    one = made(xen, Scheduler.CREDIT2)
    (notice,) = await one.notices()
    assert "dom0's CPU weight is 256" in notice and "xl sched-credit2 -d 0 -w 512" in notice
    xen.dom0 = Params(2048, 0)
    assert await one.notices() == ()
    xen.dom0 = None
    assert "cannot be read" in (await one.notices())[0]


async def test_dom0_is_given_a_weight_above_all_but_never_less(xen: FakeXen) -> None:
    one = made(xen, Scheduler.CREDIT2)
    for weight in (0, 2048, 512):
        await one.raise_dom0(weight)
    assert xen.given == [(0, Params(2048, 0))]
    assert await one.notices() == ()
    await made(xen, Scheduler.NULL).raise_dom0(4096)
    xen.dom0 = None
    await one.raise_dom0(4096)
    assert len(xen.given) == 1
