"""The chart and ``protect generate`` give the same objects, valid in every release."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from cluster.labeller.features import DIRECTORY
from tests.support.cluster.api import Object
from tests.support.manifests import schemas
from tests.support.manifests.sources import (
    ALL,
    CHART,
    SHIPPED,
    ToolRefused,
    by_name,
    chart,
    defaults,
    generate,
    needs_helm,
    read,
)

VALUES = Path(__file__).resolve().parents[2] / "data" / "chart-values"
PLATFORMS = VALUES / "two-platforms.toml"
ODD = VALUES / "odd-names.toml"
each_release = pytest.mark.parametrize("version", schemas.VERSIONS)
each_source = pytest.mark.parametrize(
    "nodes",
    [
        SHIPPED,
        ("--platforms", str(PLATFORMS)),
        ("--platforms", str(ODD)),
    ],
    ids=["shipped", "two", "odd"],
)
each_kyverno = pytest.mark.parametrize("kyverno", ["1.17", "1.18"])


def _unlabel(found: Object) -> None:
    """Remove the label that two-platforms.yaml gives every object."""
    assert found["metadata"]["labels"].pop("app.kubernetes.io/part-of") == "zones"
    if not found["metadata"]["labels"]:
        del found["metadata"]["labels"]


def of_platforms(*arguments: str) -> list[Object]:
    """The objects that ``protect generate`` makes for two platforms."""
    return read(generate("--platforms", str(PLATFORMS), *arguments))


def assert_right(objects: Sequence[Object], version: str) -> None:
    """Check that a Kubernetes of this version accepts all objects."""
    assert objects
    found = {(one["kind"], one["metadata"]["name"]): schemas.wrong(one, version) for one in objects}
    assert {key: errors for key, errors in found.items() if errors} == {}


@each_release
def test_generated_objects_are_valid(version: str) -> None:
    assert_right(defaults("--kubernetes", version), version)
    assert_right(of_platforms(*ALL, "--kubernetes", version), version)


@each_release
def test_generated_objects_for_claims_are_valid(version: str) -> None:
    claimed = ("driver", "claims", "claim-templates")
    assert_right(read(generate(*SHIPPED, *claimed, "--kubernetes", version)), version)
    assert_right(of_platforms(*claimed, "--kyverno", "1.17", "--kubernetes", version), version)


@each_kyverno
def test_generated_objects_for_kyverno_are_valid(kyverno: str) -> None:
    made = defaults("--kyverno", kyverno)
    assert not any(one["kind"].startswith("MutatingAdmission") for one in made)
    assert_right(made, "1.33")


def containers(objects: Sequence[Object]) -> list[Object]:
    return [
        container
        for one in objects
        if one["kind"] == "DaemonSet"
        for container in one["spec"]["template"]["spec"]["containers"]
    ]


def test_an_imported_image_is_not_pulled() -> None:
    """A server of HTTP on the node would be the registry, and its answer runs as root."""
    found = containers(read(generate(*SHIPPED, "labeller", "driver")))
    assert len(found) == 2
    assert {(one["image"].split(":")[0], one["imagePullPolicy"]) for one in found} == {
        ("localhost/xenpod", "Never")
    }


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("localhost/other:1", "Never"),
        (f"localhost/xenpod@sha256:{'0' * 64}", "IfNotPresent"),
        ("registry.example/xenpod:1", "IfNotPresent"),
        ("localhost:5000/xenpod:1", "IfNotPresent"),
    ],
)
def test_images_of_a_registry_and_digests_may_be_pulled(image: str, policy: str) -> None:
    made = read(generate(*SHIPPED, "labeller", "driver", "--image", image))
    assert [one["imagePullPolicy"] for one in containers(made)] == [policy] * 2


@needs_helm
def test_the_chart_pulls_no_imported_image_unless_told_to() -> None:
    digest = f"labeller.image.digest=sha256:{'0' * 64}"
    for sets, policy in (
        ((), "Never"),
        ((digest,), "IfNotPresent"),
        (("labeller.image.repository=registry.example/xenpod",), "IfNotPresent"),
        (("labeller.image.pullPolicy=Always",), "Always"),
    ):
        found = containers(chart(sets=("driver.enabled=true", *sets)))
        assert [one["imagePullPolicy"] for one in found] == [policy] * 2


@pytest.mark.parametrize("api", ["v1beta1", "v1beta2"])
def test_generated_objects_for_cluster_api_are_valid(api: str) -> None:
    made = of_platforms("cluster-api", "--cluster-api", api)
    assert {one["apiVersion"] for one in made} == {f"bootstrap.cluster.x-k8s.io/{api}"}
    assert_right(made, "1.36")


@needs_helm
@each_release
def test_the_chart_equals_the_generated_objects(version: str) -> None:
    made = chart(kubernetes=version)
    assert by_name(made) == by_name(defaults("--kubernetes", version))
    assert_right(made, version)


@needs_helm
@each_kyverno
def test_the_chart_equals_the_generated_objects_for_kyverno(kyverno: str) -> None:
    sets = ("assignClass.by=kyverno", f"assignClass.kyverno={kyverno}")
    assert by_name(chart(sets=sets)) == by_name(defaults("--kyverno", kyverno))


@needs_helm
@pytest.mark.parametrize("by", ["policy", "kyverno"])
@each_release
def test_the_chart_equals_the_generated_objects_for_claims(version: str, by: str) -> None:
    sets = ("driver.enabled=true", f"claims.by={by}", "claims.namespaces={one}", "claims.sizes={256,512}")
    more = ("--claim-namespace", "one", "--claim-size", "256Mi")
    claimed = ("driver", "claims", "claim-templates", *more, "--claim-size", "512Mi", "--kubernetes", version)
    made = chart(VALUES / "two-platforms.yaml", kubernetes=version, sets=sets)
    for one in made:
        _unlabel(one)
    kyverno = ("--kyverno", "1.17") if by == "kyverno" else ()
    wanted = [
        one
        for one in of_platforms(*ALL, *claimed, *kyverno)
        if by == "policy" or one["metadata"]["name"] != "xenpod-assign-class"
    ]
    assigned = [one for one in made if one["metadata"]["name"] == "xenpod-assign-class"]
    rest = made if by == "policy" else [one for one in made if one not in assigned]
    assert by_name(rest) == by_name(wanted)


@needs_helm
def test_platforms_are_the_same_to_the_chart_and_to_generate() -> None:
    made = chart(VALUES / "two-platforms.yaml")
    for one in made:
        _unlabel(one)
    assert by_name(made) == by_name(of_platforms(*ALL))


@needs_helm
@each_source
def test_generated_values_make_the_generated_objects(nodes: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(generate(*nodes, "chart-values"))
    assert by_name(chart(tmp_path / "values.yaml")) == by_name(read(generate(*nodes, *ALL)))


@each_source
def test_generated_values_are_valid(nodes: tuple[str, str]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    [defaults] = read((CHART / "values.yaml").read_text())
    [values] = read(generate(*nodes, "chart-values"))
    merged = defaults | values | {"labeller": defaults["labeller"] | values["labeller"]}
    assert list(Draft202012Validator(schema).iter_errors(merged)) == []
    if nodes == SHIPPED:
        assert merged == defaults


@needs_helm
@each_release
@pytest.mark.parametrize("values", ["two-platforms", "least", "kyverno"])
def test_the_chart_with_other_values_is_right(values: str, version: str) -> None:
    assert_right(chart(VALUES / f"{values}.yaml", kubernetes=version), version)


@needs_helm
def test_the_chart_makes_only_requested_objects() -> None:
    assert {one["kind"] for one in chart(VALUES / "least.yaml")} == {"RuntimeClass"}


@needs_helm
def test_with_node_feature_discovery_the_labeller_has_no_rights_in_the_cluster() -> None:
    made = chart(VALUES / "kyverno.yaml")
    assert {one["kind"] for one in made if one["metadata"]["name"] == "xenpod-labels"} == {
        "ServiceAccount",
        "DaemonSet",
    }
    [spec] = [one["spec"]["template"]["spec"] for one in made if one["kind"] == "DaemonSet"]
    assert spec["automountServiceAccountToken"] is False
    [container] = spec["containers"]
    assert container["args"] == ["nfd", "--cri-socket", "/var/run/zones/cri.socket"]
    writable = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
    assert writable == {str(DIRECTORY)}
    assert {one["hostPath"]["path"] for one in spec["volumes"]} == {"/var/run/zones", str(DIRECTORY)}


@needs_helm
def test_the_chart_passes_settings_to_pods() -> None:
    made = chart(VALUES / "kyverno.yaml")
    [spec] = [one["spec"]["template"]["spec"] for one in made if one["kind"] == "DaemonSet"]
    [container] = spec["containers"]
    assert container["image"] == f"registry.example:5000/team/xenpod@sha256:{'0123456789abcdef' * 4}"
    assert container["imagePullPolicy"] == "Always"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["runtimeClassName"] == "runc"
    assert {"key": "example.com/disk", "operator": "Exists"} in spec["tolerations"]
    [preferred] = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchExpressions"] == [
        {"key": "example.com/addons", "operator": "Exists"}
    ]
    assert container["resources"] == {
        "requests": {"cpu": "5m", "memory": "96Mi"},
        "limits": {"memory": "192Mi"},
    }


@needs_helm
def test_a_numeric_name_stays_a_name(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(
        'labeller: {runtimeClassName: "123", priorityClassName: "1e3", imagePullSecrets: ["0123"],'
        ' addonsLabel: "10=20"}'
    )
    assert_right(chart(tmp_path / "values.yaml"), "1.36")


@needs_helm
@pytest.mark.parametrize(
    ("kubernetes", "sets", "said"),
    [
        ("1.32", (), "chart requires kubeVersion: >=1.33"),
        ("1.36", ("asignClass.by=none",), "asignClass"),
        ("1.36", ("assignClass.by=kyverno", "assignClass.kyverno=1.16"), "which came with 1.17"),
    ],
)
def test_the_chart_explains_impossible_values(kubernetes: str, sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(ToolRefused, match=said):
        chart(kubernetes=kubernetes, sets=sets)


@needs_helm
@pytest.mark.parametrize("policy", ["true", "false"])
@pytest.mark.parametrize(
    ("platforms", "said"),
    [
        (
            "{name: b-c, handlers: [a], labels: {d: e}}, {name: c, handlers: [a-b], labels: {f: g}}",
            "same name",
        ),
        (f"{{name: {'n' * 30}, handlers: [{'h' * 33}], labels: {{d: e}}}}", "longer than 63"),
        ("{handlers: [a], ownNamespaces: [b], labels: {d: e}}", "ownNamespaces: b is not one of"),
        ("{name: c, handlers: [a], overheads: {b: {}}, labels: {d: e}}", "overheads: b is not one of"),
    ],
)
def test_the_chart_refuses_impossible_classes(platforms: str, said: str, policy: str, tmp_path: Path) -> None:
    """``protect generate`` does too: a namespace's label has at most 63 characters."""
    (tmp_path / "values.yaml").write_text(f"platforms: [{platforms}]")
    with pytest.raises(ToolRefused, match=said):
        chart(tmp_path / "values.yaml", sets=[f"keepOffHost.enabled={policy}"])
