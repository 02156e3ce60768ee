"""The policy that makes pods request granules, and the count of granules; others use a real API server."""

from __future__ import annotations

import re
import tomllib

import pytest

from cluster.dra.config import GranulesConfig
from cluster.objects import output
from cluster.objects.claims import granules, templates
from cluster.objects.output import GenerateOptions
from cluster.objects.platforms import NodeFile
from cluster.objects.versions import Version

NODE = NodeFile().platform(["xenpod"])
NEWEST = Version(1, 36)


def _count(need: int, size: int) -> int:
    """The CEL result for a need, both in MiB: for these numbers CEL's arithmetic is Python's."""
    [made, _] = granules.granule_policy([NODE], size, NEWEST, None)
    said = {one["name"]: one["expression"] for one in made["spec"]["variables"]}["granules"]
    computed = said.partition(" : ")[2].replace("variables.need", str(need)).replace("/", "//")
    assert re.fullmatch(r"[\d\s()+/]+", computed)
    return int(eval(computed))  # noqa: S307 - digits and operators


@pytest.mark.parametrize("size", [1, 64, 256])
def test_granules_are_the_smallest_sufficient_number(size: int) -> None:
    for need in (*range(1, 700), 1 << 14, (1 << 14) + 1, 1 << 20):
        count = _count(need, size)
        assert templates.room(count * size) >= need > templates.room((count - 1) * size)


def test_a_policy_of_kyverno_has_the_same_expressions() -> None:
    [ours, _] = granules.granule_policy([NODE], 64, NEWEST, None)
    [theirs] = granules.granule_policy([NODE], 64, NEWEST, Version(1, 17))
    assert theirs["kind"] == "MutatingPolicy"
    for part in ("variables", "mutations", "matchConstraints"):
        assert theirs["spec"][part] == ours["spec"][part]


def test_the_driver_counts_the_same_granules_and_has_no_rights() -> None:
    made = output.objects([NODE], GenerateOptions(("classes", "driver", "granules"), granule=256))
    kinds = {one["kind"]: one for one in made}
    assert not kinds.keys() & {"ClusterRole", "ClusterRoleBinding", "DeviceClass"}
    assert "overhead" not in kinds["RuntimeClass"]
    pod = kinds["DaemonSet"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    settings = tomllib.loads(kinds["ConfigMap"]["data"]["dra.toml"])["granules"]
    assert settings["size"] == "256MiB"
    mounted = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert mounted["devices"] == settings["devices_dir"] == str(GranulesConfig().devices_dir)


def test_the_resource_has_the_drivers_name() -> None:
    assert granules.RESOURCE == GranulesConfig().resource
