"""Admission policies of the API server: one assigns classes, one keeps pods with a class off the host."""

from __future__ import annotations

import json
from collections.abc import Sequence

from daemonkit.faults import Invalid
from protect.generate.classes import Object
from protect.generate.platforms import NodePlatform
from protect.generate.versions import Version

NAMESPACE_LABEL = "xenpod.dev/runtime-class"
"""Label of a namespace; the value is the class for its pods that name none."""

ASSIGN = "xenpod-assign-class"
KEEP_OFF_HOST = "xenpod-keep-off-host"

NEW_PODS: Object = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}
LABELLED: Object = {"matchExpressions": [{"key": NAMESPACE_LABEL, "operator": "Exists"}]}
NAMES_NO_CLASS = "!has(object.spec.runtimeClassName)"
CLASS_OF_NAMESPACE = f"namespaceObject.metadata.labels[{json.dumps(NAMESPACE_LABEL)}]"
# A JSON patch: it needs no schema of pods, and "add" is enough since there is no class.
SET_CLASS: Object = {
    "patchType": "JSONPatch",
    "jsonPatch": {
        "expression": f'[JSONPatch{{op: "add", path: "/spec/runtimeClassName", value: {CLASS_OF_NAMESPACE}}}]'
    },
}

_GROUP = "admissionregistration.k8s.io"
_STABLE, _BETA, _ALPHA = Version(1, 36), Version(1, 34), Version(1, 32)
_NETWORK = ("hostNetwork", "the host's network (hostNetwork)")
_NAMESPACES = (("hostPID", "the host's processes (hostPID)"), ("hostIPC", "the host's IPC (hostIPC)"))


def assign(kubernetes: Version) -> list[Object]:
    """A MutatingAdmissionPolicy and its binding, which assign a namespace's class to its pods.

    A pod that names a class keeps it.  If the value of the namespace's label is not a class, the API server
    refuses the pods that get it.  Invalid: Kubernetes is too old.
    """
    version = mutating_version(kubernetes)
    spec: Object = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {"namespaceSelector": LABELLED, "resourceRules": [NEW_PODS]},
        "matchConditions": [{"name": "names-no-class", "expression": NAMES_NO_CLASS}],
        "mutations": [SET_CLASS],
    }
    return [
        policy_object(version, "MutatingAdmissionPolicy", ASSIGN, spec),
        policy_object(version, "MutatingAdmissionPolicyBinding", ASSIGN, {"policyName": ASSIGN}),
    ]


def mutating_version(kubernetes: Version) -> str:
    """The newest version of MutatingAdmissionPolicy in a release (KEP-3962)."""
    for since, version in ((_STABLE, "v1"), (_BETA, "v1beta1"), (_ALPHA, "v1alpha1")):
        if kubernetes >= since:
            return version
    cause = f"it has no MutatingAdmissionPolicy, which came with {_ALPHA}"
    raise Invalid("make the policy for", f"Kubernetes {kubernetes}", cause, "use --kyverno")


def switches(kubernetes: Version) -> str:
    """The flags with which the API server must be started for the policy of ``assign``; "" for none."""
    version = mutating_version(kubernetes)
    if version == "v1":
        return ""
    return f"--feature-gates=MutatingAdmissionPolicy=true --runtime-config={_GROUP}/{version}=true"


def keep_off_host(platforms: Sequence[NodePlatform]) -> list[Object]:
    """A ValidatingAdmissionPolicy (v1 since Kubernetes 1.30) and its binding, which keep pods off the host.

    A pod with one of our classes that asks for namespaces or paths of the host is refused when it is created,
    so that its author sees the message.  Pods of handlers in ``own_namespaces`` may ask for hostPID and
    hostIPC, since they get those of their zone.
    """
    harmless = [
        name for one in platforms for name, handler in one.classes.items() if handler in one.own_namespaces
    ]
    unless = f" || {_one_of(harmless)}" if harmless else ""
    asked = [
        _namespace(*_NETWORK),
        *(_namespace(name, what, unless) for name, what in _NAMESPACES),
    ]
    volumes = "!has(object.spec.volumes) || object.spec.volumes.all(volume, !has(volume.hostPath))"
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [NEW_PODS]},
        "matchConditions": [{"name": "has-a-zone", "expression": has_class_of(platforms)}],
        "validations": [*asked, _validation(volumes, "does not get files of the host (hostPath)")],
    }
    binding = {"policyName": KEEP_OFF_HOST, "validationActions": ["Deny"]}
    return [
        policy_object("v1", "ValidatingAdmissionPolicy", KEEP_OFF_HOST, spec),
        policy_object("v1", "ValidatingAdmissionPolicyBinding", KEEP_OFF_HOST, binding),
    ]


def has_class_of(platforms: Sequence[NodePlatform]) -> str:
    """CEL: whether a pod has one of the platforms' classes."""
    names = [name for one in platforms for name in one.classes]
    return f"has(object.spec.runtimeClassName) && {_one_of(names)}"


def _one_of(classes: list[str]) -> str:
    return f"object.spec.runtimeClassName in {json.dumps(classes)}"


def _namespace(name: str, what: str, unless: str = "") -> Object:
    return _validation(f"!has(object.spec.{name}) || !object.spec.{name}{unless}", f"does not get {what}")


def _validation(expression: str, cause: str) -> Object:
    return {
        "expression": expression,
        "message": f"a pod with a zone of its own {cause}",
        "reason": "Forbidden",
    }


def policy_object(version: str, kind: str, name: str, spec: Object) -> Object:
    """An object of the API server's policies."""
    return {"apiVersion": f"{_GROUP}/{version}", "kind": kind, "metadata": {"name": name}, "spec": spec}
