"""The policy that claims zone memory, and its templates; other tests use a real API server."""

from __future__ import annotations

import json

import pytest

from cluster.objects import output
from cluster.objects.claims import policy, templates
from cluster.objects.output import GenerateOptions
from cluster.objects.platforms import NodeFile
from cluster.objects.versions import Version
from daemonkit.faults import Invalid
from protect.toolstack.libxl.config import overhead_bytes

MIB = 1 << 20
NODE = NodeFile().platform(["xenpod"])
NEWEST = Version(1, 36)


@pytest.mark.parametrize("size", [*templates.SIZES, 8, 100, 129, 1000])
def test_a_zone_has_its_claim_minus_the_memory_of_xen(size: int) -> None:
    """Reservations of protectd, for a zone of one vCPU."""
    taken = overhead_bytes(size * MIB, 1)
    assert templates.room(size) == (size * MIB - taken) // MIB


def test_each_size_is_at_most_half_more_than_the_last() -> None:
    assert all(later <= 1.5 * size for size, later in zip(templates.SIZES, templates.SIZES[1:], strict=False))
    assert templates.sizes(templates.SIZES) == templates.SIZES


def test_sizes_are_sorted_and_none_is_there_twice() -> None:
    assert templates.sizes([512, 256, 512]) == (256, 512)


@pytest.mark.parametrize("sizes", [[], [5], [1 << 31], list(range(8, 100))])
def test_impossible_sizes_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="are not"):
        templates.sizes(sizes)


def test_the_policy_has_the_names_of_the_templates_in_their_order() -> None:
    (made, *_) = policy.claim_policy([NODE], (256, 512), NEWEST, None)
    variables = {one["name"]: one["expression"] for one in made["spec"]["variables"]}
    names = [one["metadata"]["name"] for one in templates.claim_templates(NEWEST, ["a"], (256, 512))]
    assert json.loads(variables["templates"]) == names
    assert json.loads(variables["rooms"]) == [templates.room(256), templates.room(512)]


def test_classes_beside_the_policy_count_no_memory() -> None:
    what = GenerateOptions(("classes", "claims"))
    [made] = [one for one in output.objects([NODE], what) if one["kind"] == "RuntimeClass"]
    assert "overhead" not in made
    [alone] = output.objects([NODE], GenerateOptions(("classes",)))
    assert alone["overhead"] == {"podFixed": {"memory": "96Mi"}}


def test_too_old_releases_are_refused() -> None:
    with pytest.raises(Invalid, match=r"Kyverno 1\.16"):
        policy.claim_policy([NODE], (256,), NEWEST, Version(1, 16))
    with pytest.raises(Invalid, match=r"DeviceClass for Kubernetes 1\.32"):
        templates.device_class(Version(1, 32))


@pytest.mark.parametrize(("release", "api"), [(Version(1, 33), "v1beta2"), (NEWEST, "v1")])
def test_a_claim_belongs_to_a_zone_by_its_class_not_its_name(release: Version, api: str) -> None:
    """CEL sees only the names of the pod's claims: the test looks at the claim from the template."""
    made = policy.claim_policy([NODE], (256,), release, None)
    [found] = [
        one for one in made if one["metadata"]["name"] == policy.OWN_CLAIMS and "Binding" not in one["kind"]
    ]
    [rule] = found["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["apiVersions"], rule["resources"]) == ([api], ["resourceclaims"])
    [condition] = found["spec"]["matchConditions"]
    assert "resource.kubernetes.io/pod-claim-name" in condition["expression"]
    [validation] = found["spec"]["validations"]
    assert validation["expression"].count(f'deviceClassName.orValue("") == "{templates.CLASS}"') == 1
    assert CLASS_OF_TEMPLATES == {templates.CLASS}


def test_a_claim_with_an_invisible_class_is_refused() -> None:
    """A claim that the pod names, not a template, may be made before or after the pod."""
    made = policy.claim_policy([NODE], (256,), NEWEST, None)
    [found] = [
        one
        for one in made
        if (one["kind"], one["metadata"]["name"]) == ("ValidatingAdmissionPolicy", policy.NAME)
    ]
    assert [one["message"] for one in found["spec"]["validations"]] == [
        "it has no claim with the name zone",
        "its claim with the name zone has to come from a template: resourceClaimTemplateName",
    ]
    assert found["spec"]["validations"][1]["expression"] == (
        '!variables.ours || variables.own.all(claim, claim.?resourceClaimTemplateName.orValue("") != "")'
    )


CLASS_OF_TEMPLATES = {
    request["exactly"]["deviceClassName"]
    for one in templates.claim_templates(NEWEST, ["a"], (256,))
    for request in one["spec"]["spec"]["devices"]["requests"]
}
