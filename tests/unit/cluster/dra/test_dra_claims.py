"""Claims as the API server has them: what is allocated to this node, and what is refused."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from daemonkit.faults import Exhausted, Fault, Invalid, Missing, Refused
from dra.claims.claim import Wanted, allocation
from dra.claims.prepare import Claims
from dra.model import Promise

DRIVER, NODE = "zones.xenpod.dev", "node-1"
WANTED = Wanted("default", "memory", "uid-1", DRIVER, NODE)
CLAIM: dict[str, Any] = {
    "metadata": {"name": "memory", "namespace": "default", "uid": "uid-1"},
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": "zone",
                        "driver": DRIVER,
                        "pool": NODE,
                        "device": "memory-0",
                        "shareID": "share-1",
                        "consumedCapacity": {"memory": "512Mi"},
                    }
                ]
            }
        },
        "reservedFor": [{"resource": "pods", "name": "web", "uid": "pod-1"}],
    },
}


def changed(**result: object) -> dict[str, Any]:
    """The claim, with other fields of its result; None: without."""
    claim = copy.deepcopy(CLAIM)
    found = claim["status"]["allocation"]["devices"]["results"][0]
    for key, value in result.items():
        found.pop(key)
        if value is not None:
            found[key] = value
    return claim


def test_an_allocation() -> None:
    found = allocation(WANTED, CLAIM)
    assert (found.total_bytes, found.pod_uids) == (512 << 20, ("pod-1",))
    (part,) = found.parts
    assert (part.request, part.pool, part.device, part.share_id) == ("zone", NODE, "memory-0", "share-1")


def test_two_requests_of_a_claim_are_counted_together_and_other_drivers_are_not() -> None:
    claim = copy.deepcopy(CLAIM)
    results = claim["status"]["allocation"]["devices"]["results"]
    results.append({**results[0], "request": "more", "consumedCapacity": {"memory": "1Gi"}})
    results.append({**results[0], "request": "gpu", "driver": "gpu.example", "pool": "elsewhere"})
    found = allocation(WANTED, claim)
    assert found.total_bytes == (512 << 20) + (1 << 30)
    assert [part.request for part in found.parts] == ["zone", "more"]


def test_admin_access_takes_nothing() -> None:
    claim = changed(consumedCapacity=None)
    claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert allocation(WANTED, claim).total_bytes == 0


@pytest.mark.parametrize(
    ("claim", "kind", "cause"),
    [
        ({**CLAIM, "metadata": {"uid": "uid-2"}}, Missing, "another uid now, uid-2"),
        ({**CLAIM, "metadata": []}, Missing, "another uid"),
        ({**CLAIM, "status": {}}, Refused, "it is not allocated"),
        ({**CLAIM, "status": {"allocation": {}}}, Refused, f"nothing of driver {DRIVER}"),
        ({**CLAIM, "status": {"allocation": {"devices": {"results": "x"}}}}, Refused, "nothing of driver"),
        (changed(driver="gpu.example"), Refused, f"nothing of driver {DRIVER}"),
        (changed(pool="node-2"), Refused, "is of pool node-2, this node's is node-1"),
        (changed(consumedCapacity=None), Refused, "DRAConsumableCapacity"),
        (changed(consumedCapacity={}), Refused, "does not say how much memory"),
        (changed(consumedCapacity={"memory": "much"}), Invalid, "'much' is no quantity"),
        (changed(consumedCapacity={"memory": "0"}), Invalid, "is 0"),
        (changed(consumedCapacity={"memory": "-1Gi"}), Invalid, "is -1073741824"),
        (changed(consumedCapacity={"memory": "1e30"}), Invalid, "out of range"),
        (changed(consumedCapacity={"memory": 7}), Invalid, "no quantity"),
    ],
)
def test_what_is_refused(claim: dict[str, Any], kind: type[Fault], cause: str) -> None:
    with pytest.raises(kind, match=cause) as caught:
        allocation(WANTED, claim)
    assert str(caught.value).startswith("prepare claim default/memory: ")


class Host:
    """An API server and protectd: claims by name, reservations by uid, memory for a number of bytes."""

    def __init__(self, size: int) -> None:
        self.claims: dict[str, dict[str, Any]] = {"memory": CLAIM}
        self.reserved: dict[str, Promise] = {}
        self.size = size
        self.calls = 0

    async def claim(self, namespace: str, name: str) -> dict[str, object] | None:
        await asyncio.sleep(0)
        return self.claims.get(name)

    async def make(self, wanted: Promise) -> None:
        self.calls += 1
        others = sum(one.total_bytes for uid, one in self.reserved.items() if uid != wanted.claim_uid)
        await asyncio.sleep(0)
        if others + wanted.total_bytes > self.size:
            raise Exhausted("reserve memory for claim", wanted.claim_uid, f"{self.size - others} are free")
        self.reserved[wanted.claim_uid] = wanted

    async def release(self, claim_uid: str) -> None:
        await asyncio.sleep(0)
        self.reserved.pop(claim_uid, None)


async def test_a_claim_is_reserved_once_and_given_back() -> None:
    host = Host(1 << 30)
    claims = Claims(DRIVER, NODE, host, host)
    for _ in range(2):
        found = await claims.prepare("default", "memory", "uid-1")
        assert host.reserved == {"uid-1": Promise("uid-1", found.total_bytes, ("pod-1",), "default/memory")}
    host.claims.clear()  # it may be gone before the kubelet says so
    for _ in range(2):
        await claims.unprepare("uid-1")
        assert host.reserved == {}


async def test_a_claim_that_does_not_fit_has_the_numbers() -> None:
    host = Host(1 << 20)
    with pytest.raises(Exhausted, match="1048576 are free"):
        await Claims(DRIVER, NODE, host, host).prepare("default", "memory", "uid-1")
    assert host.reserved == {}


async def test_a_claim_that_is_gone_is_said() -> None:
    host = Host(1 << 30)
    with pytest.raises(Missing, match="no such claim"):
        await Claims(DRIVER, NODE, host, host).prepare("default", "other", "uid-1")


async def test_both_at_once_leave_what_the_later_one_says() -> None:
    host = Host(1 << 30)
    claims = Claims(DRIVER, NODE, host, host)
    await asyncio.gather(claims.prepare("default", "memory", "uid-1"), claims.unprepare("uid-1"))
    assert host.reserved == {}
    await asyncio.gather(claims.unprepare("uid-1"), claims.prepare("default", "memory", "uid-1"))
    assert set(host.reserved) == {"uid-1"}


async def test_admin_access_reserves_nothing() -> None:
    host = Host(0)
    claim = changed(consumedCapacity=None)
    claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    host.claims["memory"] = claim
    found = await Claims(DRIVER, NODE, host, host).prepare("default", "memory", "uid-1")
    assert [part.device for part in found.parts] == ["memory-0"]
    assert host.calls == 0
