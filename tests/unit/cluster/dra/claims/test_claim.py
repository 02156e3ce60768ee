"""Claims of the API server: allocations to this node, and refusals."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.dra.claims.claim import Consumer, WantedClaim, allocation
from cluster.dra.claims.prepare import Claims
from cluster.dra.claims.turns import ClaimTurns, claim_turns
from cluster.dra.config import DraConfig
from cluster.dra.model import HostDevice, Promise
from daemonkit.faults import Exhausted, Fault, Invalid, Missing, Refused

DRIVER, NODE = "zones.xenpod.dev", "node-1"
CONFIG = DraConfig(node=NODE)
CARD = HostDevice("card", "0000:65:00.0", readonly=False, zone_id="")
WANTED = WantedClaim("default", "memory", "uid-1", DRIVER, NODE, CONFIG.sizes)
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
    """The claim with changed fields of its result; None removes a field."""
    claim = copy.deepcopy(CLAIM)
    found = claim["status"]["allocation"]["devices"]["results"][0]
    for key, value in result.items():
        found.pop(key)
        if value is not None:
            found[key] = value
    return claim


def test_an_allocation_has_its_bytes_pods_and_devices() -> None:
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


def with_parameters(*parameters: object, **result: object) -> dict[str, Any]:
    """The claim with opaque parameters, and without the scheduler's figures unless ``result`` has them."""
    claim = changed(**({"consumedCapacity": None, "shareID": None} | result))
    claim["status"]["allocation"]["devices"]["config"] = [
        {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": one}} for one in parameters
    ]
    return claim


def sized(memory: object, **more: object) -> dict[str, object]:
    return {"apiVersion": "xenpod.dev/v1alpha1", "kind": "ZoneResources", "memory": memory, **more}


@pytest.mark.parametrize(
    ("claim", "size"),
    [
        (with_parameters(), 352 << 20),
        (with_parameters(sized("512Mi")), 512 << 20),
        (with_parameters(sized("1")), 32 << 20),
        (with_parameters(sized("536870913")), 513 << 20),
        (with_parameters(sized("1Gi"), sized("2Gi")), 2 << 30),
        (with_parameters(sized("100Mi"), consumedCapacity={"memory": "200Mi"}), 200 << 20),
    ],
)
def test_a_claim_with_an_exclusive_device_has_its_size(claim: dict[str, Any], size: int) -> None:
    found = allocation(WANTED, claim)
    assert (found.total_bytes, found.device) == (size, "memory-0")


def test_parameters_of_a_class_yield_to_the_claims_and_others_do_not_count() -> None:
    claim = with_parameters()
    configs = [
        {
            "source": "FromClaim",
            "requests": ["zone"],
            "opaque": {"driver": DRIVER, "parameters": sized("1Gi")},
        },
        {
            "source": "FromClaim",
            "requests": ["gpu"],
            "opaque": {"driver": DRIVER, "parameters": sized("9Gi")},
        },
        {
            "source": "FromClass",
            "requests": ["zone"],
            "opaque": {"driver": DRIVER, "parameters": sized("3Gi")},
        },
        {"source": "FromClaim", "opaque": {"driver": "gpu.example", "parameters": "anything"}},
    ]
    claim["status"]["allocation"]["devices"]["config"] = configs
    assert allocation(WANTED, claim).total_bytes == 1 << 30
    claim["status"]["allocation"]["devices"]["results"][0]["request"] = "zone/first"
    assert allocation(WANTED, claim).total_bytes == 1 << 30


@pytest.mark.parametrize(
    ("parameters", "cause"),
    [
        ("text", "no object"),
        ([], "no object"),
        ({}, "apiVersion is None"),
        (sized("1Gi", vcpus=2), "unknown key 'vcpus'"),
        (sized("1Gi") | {"kind": "Zone"}, "kind is 'Zone'"),
        (sized("0"), "memory is 0"),
        (sized("-5Mi"), "memory is -5242880"),
        (sized("lots"), "no quantity"),
        (sized(512), "no quantity"),
        (sized("9" * 5000), "no quantity"),
    ],
)
def test_malformed_parameters_are_refused(parameters: object, cause: str) -> None:
    with pytest.raises(Invalid, match=cause) as caught:
        allocation(WANTED, with_parameters(parameters))
    assert len(str(caught.value)) < 1024


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
        (
            with_parameters(sized("2Gi"), consumedCapacity={"memory": "1Gi"}),
            Refused,
            "scheduler has counted 107374",
        ),
        (changed(consumedCapacity={"memory": "much"}), Invalid, "'much' is no quantity"),
        (changed(consumedCapacity={"memory": "0"}), Invalid, "is 0"),
        (changed(consumedCapacity={"memory": "-1Gi"}), Invalid, "is -1073741824"),
        (changed(consumedCapacity={"memory": "1e30"}), Invalid, "out of range"),
        (changed(consumedCapacity={"memory": 7}), Invalid, "no quantity"),
    ],
)
def test_invalid_claim_is_refused(claim: dict[str, Any], kind: type[Fault], cause: str) -> None:
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

    async def devices(self) -> list[HostDevice]:
        return [CARD]

    async def release(self, claim_uid: str) -> None:
        await asyncio.sleep(0)
        self.reserved.pop(claim_uid, None)


class Heard:
    """The slice, and the listeners for refusals."""

    def __init__(self) -> None:
        self.devices: list[str] = []
        self.refusals: list[tuple[str, list[str], str]] = []

    def claimed(self, device: str) -> None:
        self.devices.append(device)

    def released(self) -> None:
        self.devices.append("released")

    def tell(self, claim: WantedClaim, pods: Sequence[Consumer], cause: str) -> None:
        self.refusals.append((str(claim), [pod.name for pod in pods], cause))


def claims_of(host: Host, heard: Heard | None = None) -> Claims:
    heard = heard or Heard()
    return Claims(CONFIG, host, host, heard, heard, ClaimTurns(os.memfd_create("turns")))


async def test_a_claim_is_reserved_once_and_given_back() -> None:
    host = Host(1 << 30)
    claims = claims_of(host)
    for _ in range(2):
        found = await claims.prepare("default", "memory", "uid-1")
        promise = Promise("uid-1", found.total_bytes, ("pod-1",), "memory-0", claim="default/memory")
        assert host.reserved == {"uid-1": promise}
    host.claims.clear()  # the claim may be gone before the kubelet's call
    for _ in range(2):
        await claims.unprepare("uid-1")
        assert host.reserved == {}


async def test_the_refusal_of_a_large_claim_has_the_figures() -> None:
    host = Host(1 << 20)
    with pytest.raises(Exhausted, match="1048576 are free"):
        await claims_of(host).prepare("default", "memory", "uid-1")
    assert host.reserved == {}


async def test_a_deleted_claim_is_reported() -> None:
    host = Host(1 << 30)
    with pytest.raises(Missing, match="no such claim"):
        await claims_of(host).prepare("default", "other", "uid-1")


async def test_of_concurrent_calls_the_later_result_stays() -> None:
    host = Host(1 << 30)
    claims = claims_of(host)
    await asyncio.gather(claims.prepare("default", "memory", "uid-1"), claims.unprepare("uid-1"))
    assert host.reserved == {}
    await asyncio.gather(claims.unprepare("uid-1"), claims.prepare("default", "memory", "uid-1"))
    assert set(host.reserved) == {"uid-1"}


class SlowHost(Host):
    """An API server that answers at the test's signal."""

    def __init__(self) -> None:
        super().__init__(1 << 30)
        self.asked, self.let = asyncio.Event(), asyncio.Event()

    async def claim(self, namespace: str, name: str) -> dict[str, object] | None:
        self.asked.set()
        await self.let.wait()
        return await super().claim(namespace, name)


async def test_two_instances_take_turns_at_a_claim(tmp_path: Path) -> None:
    """The kubelet gives up a slow prepare, and asks the other instance to unprepare the claim."""
    slow, heard, path = SlowHost(), Heard(), tmp_path / "d" / "claims.lock"
    with claim_turns(path) as ours, claim_turns(path) as theirs:
        leaving, coming = (Claims(CONFIG, slow, slow, heard, heard, turns) for turns in (ours, theirs))
        late = asyncio.create_task(leaving.prepare("default", "memory", "uid-1"))
        await slow.asked.wait()
        release = asyncio.create_task(coming.unprepare("uid-1"))
        await coming.unprepare("uid-2")  # of another claim: does not wait
        slow.let.set()
        await asyncio.gather(late, release)
        assert slow.reserved == {} and slow.calls == 1


async def test_admin_access_reserves_nothing() -> None:
    host = Host(0)
    claim = changed(consumedCapacity=None)
    claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    host.claims["memory"] = claim
    found = await claims_of(host).prepare("default", "memory", "uid-1")
    assert [part.device for part in found.parts] == ["memory-0"]
    assert host.calls == 0


async def test_a_refusal_is_told_and_the_device_is_not_offered_again() -> None:
    heard = Heard()
    for host, claim, cause in (
        (Host(0), CLAIM, "0 are free"),
        (Host(1 << 40), with_parameters({}), "apiVersion"),
    ):
        host.claims["memory"] = claim
        with pytest.raises(Fault):
            await claims_of(host, heard).prepare("default", "memory", "uid-1")
        assert heard.devices.pop() == "memory-0"
        told, pods, said = heard.refusals.pop()
        assert (told, pods) == ("default/memory", ["web"]) and cause in said
    with pytest.raises(Missing):
        await claims_of(Host(0), heard).prepare("default", "memory", "uid-2")
    assert heard.devices == [] and len(heard.refusals) == 1


async def test_a_claim_reserves_its_device_of_the_host() -> None:
    host, name = Host(1 << 30), CARD.slice_name(NODE)
    host.claims["memory"] = changed(device=name, consumedCapacity=None, shareID=None)
    found = await claims_of(host).prepare("default", "memory", "uid-1")
    assert [part.host_device for part in found.parts] == ["card"]
    assert host.reserved == {"uid-1": Promise("uid-1", 0, ("pod-1",), "", ("card",), "default/memory")}
    both = copy.deepcopy(CLAIM)
    results = both["status"]["allocation"]["devices"]["results"]
    results.append({"request": "card", "driver": DRIVER, "pool": NODE, "device": name})
    host.claims["memory"] = both
    host.reserved.clear()
    await claims_of(host).prepare("default", "memory", "uid-1")
    made = Promise("uid-1", 512 << 20, ("pod-1",), "memory-0", ("card",), "default/memory")
    assert host.reserved == {"uid-1": made}
    results[1]["device"] = HostDevice("other", "", readonly=False, zone_id="").slice_name(NODE)
    with pytest.raises(Refused, match="has no device device-"):
        await claims_of(host).prepare("default", "memory", "uid-1")
