"""Fault plans of the fake toolstack, and its settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daemonkit.faults import Invalid
from protect.model.errors import ToolstackError
from protect.toolstack.fake import faultplan
from protect.toolstack.fake.fake_settings import FakeSettings, physical_info
from protect.toolstack.fake.faultplan import FaultInjector, FaultKind, FaultPlan, InjectedFault

FAIL = FaultKind.FAIL


def happened(injector: FaultInjector, tries: int, at: str = "create", name: str = "web-1") -> list[bool]:
    return [injector.take(at, name) is not None for _ in range(tries)]


@pytest.mark.parametrize(
    ("skip", "times", "expected"),
    [
        (0, 1, [True, False, False, False, False]),
        (0, 2, [True, True, False, False, False]),
        (1, 1, [False, True, False, False, False]),
        (2, 2, [False, False, True, True, False]),
        (0, 0, [True, True, True, True, True]),
        (3, 0, [False, False, False, True, True]),
    ],
)
def test_fault_happens_after_its_skips_and_as_often_as_said(
    skip: int, times: int, expected: list[bool]
) -> None:
    injector = FaultInjector(FaultPlan((InjectedFault("create", FAIL, skip=skip, times=times),)))
    assert happened(injector, 5) == expected


def test_a_fault_without_numbers_happens_once_to_the_first() -> None:
    fault = InjectedFault("create", FAIL)
    assert (fault.name, fault.skip, fault.times, fault.after_ms) == ("*", 0, 1, 0)


def test_only_its_operation_and_its_names_are_counted() -> None:
    injector = FaultInjector(FaultPlan((InjectedFault("create", FAIL, name="web-*"),)))
    assert happened(injector, 2, at="destroy") == [False, False]
    assert happened(injector, 2, name="db-1") == [False, False]
    assert happened(injector, 2, name="WEB-1") == [False, False]
    assert happened(injector, 2, name="web-2") == [True, False]


def test_the_first_matching_row_applies() -> None:
    """The second row has its turn when the first is used up."""
    rows = (InjectedFault("create", FAIL), InjectedFault("create", FaultKind.HALF, times=0))
    injector = FaultInjector(FaultPlan(rows))
    assert [injector.take("create", "x") for _ in range(3)] == [rows[0], rows[1], rows[1]]


def test_rows_of_the_file_come_after_given_rows(tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    given = InjectedFault("create", FAIL)
    injector = FaultInjector(FaultPlan((given,)), file)
    assert injector.take("create", "x") is given
    assert injector.take("create", "x") is None
    file.write_text("[[fault]]\nat = 'create'\nkind = 'delay'\nafter_ms = 7\n")
    assert injector.take("create", "x") == InjectedFault("create", FaultKind.DELAY, after_ms=7)
    assert injector.take("create", "x") is None


@pytest.mark.parametrize(
    ("kind", "legal"),
    [
        ("fail", "create unpause destroy attach_disk detach_disk host_interface open_channel"),
        ("half", "create unpause destroy attach_disk detach_disk"),
        ("delay", "create unpause destroy attach_disk detach_disk host_interface open_channel"),
        ("die", "unpause"),
        ("stall", "open_channel"),
        ("exhausted", "create"),
    ],
)
def test_fault_at_an_unsuitable_operation_is_invalid(tmp_path: Path, kind: str, legal: str) -> None:
    file = tmp_path / "faults.toml"
    injector = FaultInjector(FaultPlan(), file)
    operations = "create unpause destroy attach_disk detach_disk host_interface open_channel list"
    for at in operations.split():
        file.write_text(f"[[fault]]\nat = '{at}'\nkind = '{kind}'\n")
        if at in legal.split():
            assert injector.take(at, "x") == InjectedFault(at, FaultKind(kind))
        else:
            with pytest.raises(Invalid, match=r"faults\.toml"):
                injector.take(at, "x")


@pytest.mark.parametrize("skip", [0, 1])
def test_memory_is_missing_until_a_request(skip: int) -> None:
    rows = (InjectedFault("create", FAIL), InjectedFault("create", FaultKind.EXHAUSTED, skip=skip, times=1))
    injector = FaultInjector(FaultPlan(rows[1:]))
    assert injector.exhausted()
    for _ in range(skip + 1):
        assert injector.exhausted()
        injector.take("create", "x")
    assert not injector.exhausted()
    assert not FaultInjector(FaultPlan(rows[:1])).exhausted()


def test_memory_stays_missing_without_a_limit() -> None:
    injector = FaultInjector(FaultPlan((InjectedFault("create", FaultKind.EXHAUSTED, times=0),)))
    for _ in range(3):
        assert injector.exhausted() and injector.take("create", "x") is not None
    assert injector.exhausted()


async def test_fault_is_injected_before_or_after_the_operation() -> None:
    fail, half = InjectedFault("create", FAIL), InjectedFault("create", FaultKind.HALF)
    with pytest.raises(ToolstackError, match="create domain web: injected fault"):
        await faultplan.before(fail, "create domain", "web")
    faultplan.after(fail, "create domain", "web")
    await faultplan.before(half, "create domain", "web")
    with pytest.raises(ToolstackError, match="create domain web: injected fault"):
        faultplan.after(half, "create domain", "web")
    await faultplan.before(None, "create domain", "web")
    faultplan.after(None, "create domain", "web")


def test_memory_for_zones_is_the_machines_minus_the_reserve() -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert FakeSettings().zone_memory == machine - (1024 << 20)
    assert FakeSettings(reserve=5).zone_memory == machine - 5  # type: ignore[arg-type]
    assert FakeSettings(memory=7, reserve=5).zone_memory == 7  # type: ignore[arg-type]


def test_physical_info_has_memory_cpus_and_notices() -> None:
    info = physical_info(100, 60, "beware")
    assert (info.total_memory_bytes, info.free_memory_bytes) == (100, 60)
    assert info.cpus == len(os.sched_getaffinity(0))
    assert info.notices == ("beware",) and not info.security_boundary
    most = Path("/proc/sys/user/max_user_namespaces")
    assert info.user_namespaces == (most.exists() and int(most.read_text()) > 0)
