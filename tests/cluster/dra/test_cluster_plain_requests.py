"""On a real cluster, pods that only set limits get claims for their zones' memory from the policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from protectctl.__main__ import parser
from protectctl.cluster.generate import generate
from tests.support.cluster.api import PATIENCE, ApiRefused, Object
from tests.support.cluster.claims import CLAIMS, RETRIED, Driver, driving, unscheduled
from tests.support.cluster.cluster import NODE_MEMORY, PODS, Cluster, pod
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import needs_node
from tests.support.manifests.applied import applied
from tests.support.manifests.sources import read

pytestmark = [pytest.mark.root, needs_node, needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
NAMESPACE = "/api/v1/namespaces/default"
PLATFORMS = """
[platforms.here]
handlers = ["xenpod", "small"]
labels = {"kubernetes.io/hostname" = "localhost"}
taints = []
overhead = {memory = "96Mi", cpu = "10m"}
overheads = {small = {memory = "128Mi"}}
"""
CLASS, SMALL = "xenpod-here", "small-here"
SIZES = (128, 192, 256, 512, 1024)
SIZE = 512 * MIB
FITS = NODE_MEMORY // SIZE
NOTE = "zones.xenpod.dev/claim"
ASSIGNED = "xenpod.dev/runtime-class"


def limited(memory: str, **more: Any) -> Object:
    return {"resources": {"limits": {"memory": memory}}, **more}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def claiming(
    session_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Driver]:
    """The driver, and in the default namespace the generated policy with its templates."""
    folder = tmp_path_factory.mktemp("claims")
    (folder / "platforms.toml").write_text(PLATFORMS)
    words = ["classes", "claims", "claim-templates", "assign-class", "--to", str(folder / "made")]
    sizes = [word for size in SIZES for word in ("--claim-size", f"{size}Mi")]
    await generate(
        parser().parse_args(["generate", *words, *sizes, "--platforms", str(folder / "platforms.toml")])
    )
    objects = [one for path in sorted(Path(folder / "made").iterdir()) for one in read(path.read_text())]
    api = session_cluster.api
    async with driving(session_cluster) as driver, applied(api, objects):
        await api.patch(NAMESPACE, {"metadata": {"labels": {"xenpod.dev/zone-claims": "true"}}})
        try:
            async with asyncio.timeout(PATIENCE):  # a policy acts a moment after its creation
                while NOTE not in await noted(driver) or not await refuses(driver):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            yield driver
        finally:
            await session_cluster.tidy()
            labels = {"xenpod.dev/zone-claims": None, ASSIGNED: None}
            await api.patch(NAMESPACE, {"metadata": {"labels": labels}})


@pytest_asyncio.fixture(loop_scope="session")
async def driver(claiming: Driver) -> AsyncIterator[Driver]:
    yield claiming
    await claiming.cluster.tidy()
    await claiming.cluster.api.delete(CLAIMS)
    await claiming.agree()


async def asked(driver: Driver, body: Object) -> Object:
    """Create a pod as a dry run: the pod."""
    found: Object = await driver.cluster.api.post(f"{PODS}?dryRun=All&fieldValidation=Strict", body)
    return found


async def noted(driver: Driver) -> Object:
    """The annotations of a pod; none while only the policy that refuses pods without a claim acts."""
    try:
        found = await asked(driver, pod("asked", "true", runtimeClassName=CLASS))
    except ApiRefused:
        return {}
    notes: Object = found["metadata"].get("annotations") or {}
    return notes


async def refuses(driver: Driver) -> bool:
    try:
        await asked(driver, pod("asked", "true", container=limited("9Gi"), runtimeClassName=CLASS))
    except ApiRefused:
        return True
    return False


async def test_node_is_filled_by_limits_and_another_pod_waits(driver: Driver) -> None:
    """Each zone is counted once: by its claim, and nowhere else."""
    names = [f"plain-{number}" for number in range(FITS + 1)]
    for name in names[:-1]:
        await driver.cluster.create(name, "sleep", "1000", container=limited("400Mi"), runtimeClassName=CLASS)
    seen = await driver.cluster.started(*names[:-1], patience=RETRIED)
    for one in seen:
        spec = one["spec"]
        assert spec["containers"][0]["resources"]["requests"] == {"memory": "0"}
        assert spec["overhead"] == {"cpu": "10m"}
        assert one["metadata"]["annotations"][NOTE].startswith("xenpod-zone-512mi for 496Mi")
    found = await driver.reservations()
    assert [one.memory_bytes + one.overhead_bytes for one in found.values()] == [SIZE] * FITS
    zones = {zone.id: zone.resources.memory_bytes for zone in await driver.cluster.zones()}
    assert zones == {one.zone_id: one.memory_bytes for one in found.values()}
    last = names[-1]
    await driver.cluster.create(last, "sleep", "1000", container=limited("400Mi"), runtimeClassName=CLASS)
    assert "cannot allocate all claims" in await unscheduled(driver.cluster, last)
    await driver.cluster.api.delete(f"{PODS}/{names[0]}?gracePeriodSeconds=0")
    await driver.cluster.started(last)
    await driver.agree()


def several(**spec: Any) -> Object:
    """A pod of two containers, of 64 MiB and 32 MiB."""
    made = pod("asked", "true", container=limited("64Mi"), **spec)
    made["spec"]["containers"].append({"name": "other", "image": "other", **limited("32Mi")})
    return made


def sidecar(memory: str) -> Object:
    return {"name": "side", "image": "side", "restartPolicy": "Always", **limited(memory)}


SIZED = [
    pytest.param(several(runtimeClassName=CLASS), "xenpod-zone-256mi for 192Mi", id="sum"),
    pytest.param(
        several(runtimeClassName=CLASS, initContainers=[{"name": "a", "image": "a", **limited("300Mi")}]),
        "xenpod-zone-512mi for 396Mi",
        id="starting",
    ),
    pytest.param(
        several(runtimeClassName=CLASS, initContainers=[sidecar("64Mi")]),
        "xenpod-zone-512mi for 256Mi",
        id="sidecar",
    ),
    pytest.param(
        several(runtimeClassName=CLASS, resources={"limits": {"memory": "500Mi"}}),
        "xenpod-zone-1024mi for 596Mi",
        id="of-the-pod",
    ),
    pytest.param(pod("asked", "true", runtimeClassName=CLASS), "xenpod-zone-512mi for 256Mi", id="none"),
    pytest.param(pod("asked", "true", runtimeClassName=SMALL), "xenpod-zone-192mi for 128Mi", id="handler"),
    pytest.param(
        pod("asked", "true", runtimeClassName=CLASS, annotations={"xenpod.dev/memory": "100M"}),
        "xenpod-zone-128mi for 96Mi",
        id="annotation",
    ),
    pytest.param(
        pod("asked", "true", runtimeClassName=CLASS, container=limited("1.5")),
        "xenpod-zone-128mi for 97Mi",
        id="fraction",
    ),
]


@pytest.mark.parametrize(("body", "said"), SIZED)
async def test_a_claim_is_as_large_as_the_zone_will_be(driver: Driver, body: Object, said: str) -> None:
    made = await asked(driver, body)
    spec = made["spec"]
    template = said.partition(" ")[0]
    assert spec["resourceClaims"] == [{"name": "zone", "resourceClaimTemplateName": template}]
    assert made["metadata"]["annotations"][NOTE] == f"{said}; no memory is requested of dom0"
    everything = [spec, *spec["containers"], *spec.get("initContainers", ())]
    assert {one.get("resources", {}).get("requests", {}).get("memory", "0") for one in everything} == {"0"}


async def test_claims_of_the_pod_itself_are_kept(driver: Driver) -> None:
    own = [{"name": name, "resourceClaimTemplateName": name} for name in ("zone", "gpu")]
    made = await asked(
        driver, pod("asked", "true", runtimeClassName=CLASS, container=limited("9Gi"), resourceClaims=own)
    )
    assert made["spec"]["resourceClaims"] == own
    assert made["metadata"]["annotations"][NOTE].startswith("zone for 9312Mi")
    beside = await asked(driver, pod("asked", "true", runtimeClassName=CLASS, resourceClaims=own[1:]))
    assert [one["name"] for one in beside["spec"]["resourceClaims"]] == ["gpu", "zone"]


async def test_foreign_claim_with_the_name_of_a_zones_claim_is_refused(driver: Driver) -> None:
    """Of another device class, as made by the controller, and with a class that the pod does not show."""
    with pytest.raises(ApiRefused, match="has to come from a template"):
        named = [{"name": "zone", "resourceClaimName": "mine"}]
        await asked(driver, pod("asked", "true", runtimeClassName=CLASS, resourceClaims=named))
    claims = f"{CLAIMS}?dryRun=All"
    for name, device_class, refused in (
        ("zone", "other", True), ("zone", "zone-memory", False), ("gpu", "other", False)
    ):  # fmt: skip
        body = {
            "metadata": {
                "generateName": "asked-",
                "annotations": {"resource.kubernetes.io/pod-claim-name": name},
            },
            "spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": device_class}}]}},
        }
        if not refused:
            await driver.cluster.api.post(claims, body)
            continue
        with pytest.raises(ApiRefused, match="of the device class zone-memory"):
            await driver.cluster.api.post(claims, body)


async def test_pod_too_large_for_every_template_is_refused(driver: Driver) -> None:
    with pytest.raises(ApiRefused, match=r"its zone needs 1120Mi, and the largest .* has room for 1011Mi"):
        await asked(driver, pod("asked", "true", runtimeClassName=CLASS, container=limited("1Gi")))


async def test_a_pod_without_a_zone_is_left_alone(driver: Driver) -> None:
    made = await asked(driver, pod("asked", "true", container=limited("64Mi")))
    assert "resourceClaims" not in made["spec"]
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"memory": "64Mi"}


async def test_class_assigned_by_another_policy_counts(driver: Driver) -> None:
    await driver.cluster.api.patch(NAMESPACE, {"metadata": {"labels": {ASSIGNED: CLASS}}})
    async with asyncio.timeout(PATIENCE):  # of the namespace the API server hears a moment later
        while "resourceClaims" not in (await asked(driver, several()))["spec"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    made = await asked(driver, several())
    assert made["metadata"]["annotations"][NOTE].startswith("xenpod-zone-256mi for 192Mi")
    assert made["spec"]["containers"][1]["resources"]["requests"] == {"memory": "0"}
