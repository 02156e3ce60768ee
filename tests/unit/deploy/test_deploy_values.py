"""The values of the chart: each is explained, in the schema, and wrong ones are refused."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.manifests.sources import CHART, read

TEXT = (CHART / "values.yaml").read_text()
[VALUES] = read(TEXT)
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
CHECK = Draft202012Validator(SCHEMA)
HELMS_OWN = {"global"}
AS_KUBERNETES_HAS_THEM = {"requests", "limits", "cpu", "memory"}


def keys(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all values in the schema; an item of a list is ``*``."""
    schema: Any = SCHEMA
    for name in path:
        schema = _followed(schema["items"] if name == "*" else schema["properties"][name])
    for name in schema.get("properties", {}):
        if name not in HELMS_OWN:
            yield (*path, name)
            yield from keys(value, (*path, name))
    if "items" in schema:
        yield from keys(value, (*path, "*"))


def _followed(schema: Any) -> Any:
    return SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def test_the_schema_names_every_value_and_no_other() -> None:
    limits = {(name, "resources", "limits", "cpu") for name in ("labeller", "driver")}
    delegate = ("platforms", "*", "delegate")
    # Only nodes with another runtime have the value; values.yaml shows it in a comment.
    of_delegate = {delegate, *((*delegate, key) for key in ("namespaces", "default", "hostNetwork"))}
    without_default = {("platforms", "*", "overhead", "cpu"), *limits, *of_delegate}
    assert set(keys(VALUES)) == set(_written(VALUES)) | without_default


def _written(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, list):
        for one in value:
            if isinstance(one, dict):
                yield from _written(one, (*path, "*"))
        return
    for name, one in value.items() if isinstance(value, dict) else ():
        if re.fullmatch(r"[a-zA-Z]+", name):
            yield (*path, name)
            yield from _written(one, (*path, name))


def test_every_value_is_explained() -> None:
    lines = TEXT.splitlines()
    explained = 0
    for before, line in zip(["", *lines], lines, strict=False):
        if match := re.match(r"\s*(?:- )?([a-zA-Z]+):", line):
            assert before.strip().startswith("#") or match[1] in AS_KUBERNETES_HAS_THEM, line
            explained += 1
    assert explained > 10


def test_the_chart_has_the_version_of_the_project() -> None:
    [about] = read((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((CHART.parents[1] / "pyproject.toml").read_text())["project"]
    assert about["version"] == about["appVersion"] == project["version"]


def test_the_defaults_are_right() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert list(CHECK.iter_errors(VALUES)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("more", 1),
        ("labels", {"a": True}),
        ("labels", {"a b": "c"}),
        ("platforms", []),
        ("platforms/0/name", "Metal"),
        ("platforms/0/handlers", []),
        ("platforms/0/handlers", ["a.b"]),
        ("platforms/0/handlers", ["a", "a"]),
        ("platforms/0/labels", {}),
        ("platforms/0/taints", ["a=b"]),
        ("platforms/0/taints", ["a=b:Never"]),
        ("platforms/0/taints", [{"key": "a"}]),
        ("platforms/0/overhead/memory", "96MiB"),
        ("platforms/0/overhead/disk", "1Gi"),
        ("platforms/0/overheads", {"fast": "256Mi"}),
        ("platforms/0/ownNamespaces", ["a b"]),
        ("platforms/0/more", 1),
        ("assignClass/by", "webhook"),
        ("assignClass/policyVersion", "v2"),
        ("assignClass/kyverno", 1.17),
        ("assignClass/kyverno", "1.17.0-rc1"),
        ("assignClass/more", 1),
        ("keepOffHost/enabled", "no"),
        ("keepOffHost/more", 1),
        ("driver/enabled", "yes"),
        ("driver/kubeletDir", "var/lib/kubelet"),
        ("driver/config", {"sizes": 1}),
        ("claims/by", "webhook"),
        ("claims/sizes", []),
        ("claims/sizes", ["512Mi"]),
        ("claims/sizes", [7]),
        ("claims/namespaces", ["A"]),
        ("labeller/enabled", "yes"),
        ("labeller/to", "nowhere"),
        ("labeller/image/repository", "localhost/xenpod:1"),
        ("labeller/image/repository", ""),
        ("labeller/image/tag", "a b"),
        ("labeller/image/digest", "0123"),
        ("labeller/image/pullPolicy", "Sometimes"),
        ("labeller/imagePullSecrets", [{"name": "a"}]),
        ("labeller/criSocket", "run/cri.sock"),
        ("labeller/criSocket", "/cri.sock"),
        ("labeller/criSocket", "/run/"),
        ("labeller/runtimeClassName", "A"),
        ("labeller/priorityClassName", ""),
        ("labeller/addonsLabel", "a=b=c"),
        ("labeller/tolerations", {}),
        ("labeller/resources/requests/disk", "1Gi"),
        ("labeller/more", 1),
    ],
)
def test_a_wrong_value_is_refused(path: str, value: Any) -> None:
    made: Any = copy.deepcopy(VALUES)
    *above, last = (int(name) if name.isdigit() else name for name in path.split("/"))
    at = made
    for name in above:
        at = at[name]
    at[last] = value
    assert list(CHECK.iter_errors(made))
