"""Schemas of the kinds in our manifests, and the API versions of Kubernetes' releases.

The schemas are in ``tests/data/schemas``, a file for each API group, made by hand from the API reference.
They have only the fields in use: a misspelt or new field is an error.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.support.cluster.api import Object

FOLDER = Path(__file__).resolve().parents[2] / "data" / "schemas"
VERSIONS = ("1.33", "1.34", "1.35", "1.36")

_ADMISSION = "admissionregistration.k8s.io"
_ALWAYS = (
    ("v1", "Namespace"),
    ("v1", "ServiceAccount"),
    ("v1", "ConfigMap"),
    ("apps/v1", "DaemonSet"),
    ("node.k8s.io/v1", "RuntimeClass"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    (f"{_ADMISSION}/v1", "ValidatingAdmissionPolicy"),
    (f"{_ADMISSION}/v1", "ValidatingAdmissionPolicyBinding"),
)
_MUTATING: Mapping[str, tuple[str, ...]] = {
    "1.33": ("v1alpha1",),
    "1.34": ("v1beta1", "v1alpha1"),
    "1.35": ("v1beta1", "v1alpha1"),
    "1.36": ("v1", "v1beta1", "v1alpha1"),
}
"""Versions of MutatingAdmissionPolicy in an API server. All but v1 have to be enabled."""
_CLAIMS: Mapping[str, tuple[str, ...]] = {
    "1.33": ("v1beta2",),
    "1.34": ("v1", "v1beta2"),
    "1.35": ("v1", "v1beta2"),
    "1.36": ("v1", "v1beta2"),
}
"""Versions of resource.k8s.io in an API server, as far as we use them. All but v1 have to be enabled."""
CUSTOM = {"policies.kyverno.io", "bootstrap.cluster.x-k8s.io"}
"""Groups of custom resources: an API server has the groups if somebody installed them, at any version."""


def served(version: str) -> set[tuple[str, str]]:
    """API versions and kinds that a Kubernetes of this version accepts, except custom resources."""
    both = ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
    mutating = ((f"{_ADMISSION}/{api}", kind) for api in _MUTATING[version] for kind in both)
    kinds = ("DeviceClass", "ResourceClaimTemplate")
    claims = ((f"resource.k8s.io/{api}", kind) for api in _CLAIMS[version] for kind in kinds)
    return {*_ALWAYS, *mutating, *claims}


def needs_enabling(found: Object) -> bool:
    """Whether an API server takes the object only with an API and a feature that are off by default."""
    return found["kind"].startswith("MutatingAdmissionPolicy") and not found["apiVersion"].endswith("/v1")


def wrong(found: Object, version: str) -> list[str]:
    """The errors for which a Kubernetes of this version would refuse the object; empty if none."""
    api, kind = str(found.get("apiVersion")), str(found.get("kind"))
    if (group_of(api), kind) not in kinds():
        return [f"there is no schema of {kind} of {api}"]
    if group_of(api) not in CUSTOM and (api, kind) not in served(version):
        return [f"Kubernetes {version} does not serve {kind} of {api}"]
    errors = validator(group_of(api), kind).iter_errors(found)
    return [f"{error.json_path}: {error.message}" for error in errors]


def group_of(api: str) -> str:
    """The group of an API version: ``apps`` for ``apps/v1``, ``core`` for ``v1``."""
    return api.rpartition("/")[0] or "core"


@functools.cache
def documents() -> dict[str, Any]:
    """The schemas by the name of their file."""
    return {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


@functools.cache
def validator(group: str, kind: str) -> Draft202012Validator:
    """The validator of a kind in ``kinds()``."""
    name = f"{group}.json"
    found = ((file, Resource.from_contents(text, DRAFT202012)) for file, text in documents().items())
    return Draft202012Validator({"$ref": f"{name}#/$defs/{kind}"}, registry=Registry().with_resources(found))


@functools.cache
def kinds() -> list[tuple[str, str]]:
    """Group and kind of each schema of a whole object."""
    return [
        (file.removesuffix(".json"), name)
        for file, text in documents().items()
        for name, schema in text["$defs"].items()
        if {"apiVersion", "kind"} <= set(schema.get("required", ())) and "metadata" in schema["properties"]
    ]
