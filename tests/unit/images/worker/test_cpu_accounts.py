from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from images.worker.cpu_accounts import HOST, CpuAccounts, tenant_key

ONE, OTHER = tenant_key("one"), tenant_key("other")


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_leaves_no_debt_and_more_does() -> None:
    accounts = CpuAccounts(_Clock())
    accounts.charge(ONE, 0.06)
    assert not accounts.in_debt(ONE)
    accounts.charge(ONE, 0.06)
    assert accounts.in_debt(ONE) and not accounts.in_debt(OTHER)


def test_the_operator_has_no_account() -> None:
    accounts = CpuAccounts(_Clock())
    accounts.charge(tenant_key(""), 1000)
    assert not accounts.in_debt(HOST)


def test_a_short_tenants_key_differs_from_the_operators() -> None:
    assert len({HOST, ONE, OTHER}) == 3 and len(ONE) == len(HOST)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=20))
def test_any_debt_is_settled_after_ten_seconds(charges: list[float]) -> None:
    clock = _Clock()
    accounts = CpuAccounts(clock)
    for seconds in charges:
        accounts.charge(ONE, seconds)
    clock.now += 10
    assert not accounts.in_debt(ONE)


def test_full_accounts_are_closed_and_debts_stay() -> None:
    clock = _Clock()
    accounts = CpuAccounts(clock)
    for number in range(5000):
        clock.now += 0.01
        accounts.charge(tenant_key(str(number)), 0.002)
    accounts.charge(ONE, 1)
    for number in range(5000, 6000):
        accounts.charge(tenant_key(str(number)), 0.002)
    assert accounts.in_debt(ONE)
    assert len(accounts._accounts) <= 1024
