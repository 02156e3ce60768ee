"""Any claim gets an answer; longer by hand: ``python -m tests.fuzz dra``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from cluster.dra.kube.api import ClusterApi
from daemonkit.faults import Invalid
from daemonkit.quantity import LARGEST
from tests.fuzz.dra import UID, claims, deep, prepare
from tests.support.dra.api_server import Cluster, serving
from tests.support.dra.claims import DRIVER, PARAMETERS, allocated
from tests.support.labels.api_server import kubeconfig


@given(claims())
@settings(max_examples=300)
def test_any_claim_gives_devices_or_an_error_text(claim: dict[str, Any]) -> None:
    prepare(claim)


def with_parameters(*parameters: object) -> dict[str, Any]:
    """A claim with a request of a device for each of these parameters."""
    claim = allocated("memory", UID, "1", "pod-1", shared=False)
    devices = claim["status"]["allocation"]["devices"]
    (result,) = devices["results"]
    devices["results"] = [result | {"request": str(number)} for number in range(len(parameters))]
    devices["config"] = [
        {"requests": [str(number)], "opaque": {"driver": DRIVER, "parameters": one}}
        for number, one in enumerate(parameters)
    ]
    return claim


@pytest.mark.parametrize("key", ["apiVersion", "kind", "memory", "unknown"])
@pytest.mark.parametrize("objects", [True, False])
def test_deep_parameters_are_refused(key: str, objects: bool) -> None:
    answer = prepare(with_parameters(PARAMETERS | {"memory": "1Gi", key: deep(100_000, objects=objects)}))
    assert answer.error.startswith("read parameters of claim default/memory: ")


@pytest.mark.parametrize("sizes", [[LARGEST], [1 << 62, 1 << 62], [LARGEST] * 3])
def test_sizes_beyond_the_request_field_are_refused(sizes: list[int]) -> None:
    claim = with_parameters(*(PARAMETERS | {"memory": str(size)} for size in sizes))
    assert "are out of range" in prepare(claim).error


@pytest.mark.parametrize(
    ("memory", "cause"),
    [
        ("[" * 5000 + "]" * 5000, "nested too deeply"),
        ('{"a":' * 1500 + "0" + "}" * 1500, "nested too deeply"),
        ("9" * 5000, "a number in it has thousands of digits"),
    ],
)
async def test_a_claim_with_unreadable_json_is_refused(tmp_path: Path, memory: str, cause: str) -> None:
    """The API server keeps parameters as the user wrote them, up to 10 KiB and 10,000 levels."""
    text = json.dumps(with_parameters(PARAMETERS | {"memory": "SIZE"}))
    cluster = Cluster(written={"default/memory": text.replace('"SIZE"', memory).encode()})
    with serving(cluster) as url:
        api = ClusterApi(kubeconfig(tmp_path / "kubeconfig", url))
        with pytest.raises(Invalid, match=cause) as caught:
            await api.claim("default", "memory")
    assert str(caught.value).startswith("read claim default/memory: ")
