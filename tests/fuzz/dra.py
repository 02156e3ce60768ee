"""Fuzzes resource claims, from the API server's JSON to the kubelet's answer and protectd's request.

Every tenant can write a claim's parameters; the rest of a claim has wrong parts, too.  The kubelet always
gets an answer: devices, or an error text. protectd gets only numbers in the range of its messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.dra.claims.claim import Consumer, WantedClaim
from cluster.dra.claims.prepare import Claims
from cluster.dra.claims.turns import ClaimTurns
from cluster.dra.config import DraConfig
from cluster.dra.kubelet.plugin import PluginV1
from cluster.dra.model import HOST_DEVICE
from cluster.dra.protectd_reservations import ProtectdReservations
from daemonkit.quantity import LARGEST
from tests.support.dra.claims import DRIVER, PARAMETERS, allocated
from tests.support.labels.api_server import NAME
from xenpod_proto.kubelet import dra_v1_pb2 as kubelet
from xenpod_proto.protect.v1 import protect_pb2 as protect
from xenpod_proto.protect.v1 import reservations_pb2 as pb

UID = "uid-1"
_CONFIG = DraConfig(node=NAME)
_LONGEST = 1024
_ROUND = 500

_TEXT = st.text(st.characters(), max_size=100)
"""Texts with lone surrogates, which JSON permits."""
_SIZES = ("512Mi", "1", "7Ei", str(LARGEST), "0.1n", "0", "-1", str(LARGEST + 1), "1e-99", "9" * 5000)
_NUMBERS = st.sampled_from([0, 1, -1, 1 << 63, 1 << 64, 10**4299, 0.5, float("inf"), float("nan")])
_LEAVES = st.none() | st.booleans() | st.integers() | _NUMBERS | _TEXT | st.sampled_from(_SIZES)


def deep(levels: int, *, objects: bool) -> object:
    """A document with the given number of levels."""
    found: object = 0
    for _ in range(levels):
        found = {"": found} if objects else [found]
    return found


DOCUMENTS: st.SearchStrategy[Any] = st.one_of(
    st.recursive(_LEAVES, lambda some: st.lists(some) | st.dictionaries(_TEXT, some), max_leaves=10),
    st.builds(deep, st.sampled_from([1, 50, 900, 2000]), objects=st.booleans()),
    st.builds(lambda count: list(range(count)), st.integers(0, 5000)),
)
"""All values of JSON."""

_GOOD = st.sampled_from(_SIZES[:5])
_DRIVERS = st.sampled_from([DRIVER, DRIVER, DRIVER, "gpu.example"])
_REQUESTS = st.sampled_from(["zone", "zone/first", "gpu"])
_CONFIGS = st.fixed_dictionaries(
    {
        "source": st.sampled_from(["FromClaim", "FromClass"]),
        "requests": st.lists(_REQUESTS, max_size=2),
        "opaque": st.fixed_dictionaries(
            {"driver": _DRIVERS, "parameters": _GOOD.map(lambda size: PARAMETERS | {"memory": size})}
        ),
    }
)
_RESULTS = st.fixed_dictionaries(
    {
        "request": _REQUESTS,
        "driver": _DRIVERS,
        "pool": st.just(NAME),
        "device": st.sampled_from(["memory", "memory", "memory", "memory-1", HOST_DEVICE + "0"]),
        "adminAccess": st.sampled_from([False, False, False, True]),
    },
    optional={"shareID": st.just("share-1"), "consumedCapacity": st.fixed_dictionaries({"memory": _GOOD})},
)


@st.composite
def _whole(draw: st.DrawFn) -> dict[str, Any]:
    """A well-formed claim of the namespace ``default``."""
    results = draw(st.lists(_RESULTS, min_size=1, max_size=3))
    claim = allocated("memory", UID, "512Mi", "pod-1")
    claim["status"]["allocation"]["devices"] = {
        "results": results,
        "config": draw(st.lists(_CONFIGS, max_size=3)),
    }
    return claim


def _places(value: object) -> Iterator[tuple[Any, Any]]:
    """All values in a document, each as its container and key."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    for key, inner in list(pairs):
        yield value, key
        yield from _places(inner)


@st.composite
def claims(draw: st.DrawFn) -> dict[str, Any]:
    """Claims with up to three changed, added or missing values."""
    claim = draw(_whole())
    changes = [(draw(st.integers(0, 1 << 16)), draw(DOCUMENTS)) for _ in range(draw(st.integers(0, 3)))]
    places = list(_places(claim))
    for number, document in changes:
        container, key = places[number % len(places)]
        match draw(st.integers(0, 5)):
            case 0 if isinstance(container, dict):
                container.pop(key, None)
            case 1 if isinstance(container, dict):
                container[draw(_TEXT)] = document
            case _:
                container[key] = document
    return claim


class _Protectd:
    """A channel to protectd with success for every message."""

    def unary_unary(self, *_: object, **__: object) -> Callable[..., Awaitable[object]]:
        return self._call

    def unary_stream(self, *_: object, **__: object) -> Callable[..., Awaitable[object]]:
        return self._call

    async def _call(self, request: object, timeout: float) -> object:
        if isinstance(request, pb.MakeReservationRequest):
            assert request.total_bytes <= LARGEST
            assert request.total_bytes or request.devices
            return pb.Reservation()
        return protect.ListDevicesResponse()


class _Around:
    """The API server with a claim, the slice, and the recipients of refusals."""

    def __init__(self, claim: dict[str, Any]) -> None:
        self._claim = claim

    async def claim(self, namespace: str, name: str) -> dict[str, object] | None:
        return self._claim

    def claimed(self, device: str) -> None:
        assert isinstance(device, str)

    def released(self) -> None:
        raise AssertionError

    def tell(self, claim: WantedClaim, pods: Sequence[Consumer], cause: str) -> None:
        assert cause.encode()


def prepare(claim: dict[str, Any]) -> kubelet.NodePrepareResourceResponse:
    """The answer to the kubelet that prepares the claim.  Any exception is a bug."""

    async def run() -> Any:
        around, channel = _Around(claim), _Protectd()
        turns = ClaimTurns(descriptor)
        protectd = ProtectdReservations(channel)  # type: ignore[arg-type]
        plugin = PluginV1(Claims(_CONFIG, around, protectd, around, around, turns))
        request = kubelet.NodePrepareResourcesRequest(
            claims=[kubelet.Claim(namespace="default", name="memory", uid=UID)]
        )
        return await plugin.NodePrepareResources(request, None)  # type: ignore[arg-type]

    descriptor = os.memfd_create("turns")
    try:
        answer = asyncio.run(run()).claims[UID]
    finally:
        os.close(descriptor)
    assert bool(answer.error) is not bool(answer.devices)
    assert len(answer.error) <= _LONGEST
    return answer  # type: ignore[no-any-return]


def main(seconds: float) -> None:
    """Try claims for the given seconds; raises the first failure in its smallest form."""
    logging.disable()  # refusals are no news
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:

        @settings(max_examples=_ROUND, deadline=None, database=None)
        @given(claims())
        def tried(claim: dict[str, Any]) -> None:
            prepare(claim)

        tried()
        rounds += 1
        sys.stdout.write(f"{rounds * _ROUND} claims\n")
        sys.stdout.flush()
