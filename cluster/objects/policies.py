"""Admission policies of the API server: one assigns classes, two keep pods off the host."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cluster.objects.classes import Object
from cluster.objects.platforms import DelegateRules, NodePlatform
from cluster.objects.syntax import Taint
from cluster.objects.versions import Version
from daemonkit.faults import Invalid
from daemonkit.namespaces import expression

NAMESPACE_LABEL = "xenpod.dev/runtime-class"
"""Label of a namespace; the value is the class for the namespace's pods without a class."""

ASSIGN = "xenpod-assign-class"
KEEP_OFF_HOST = "xenpod-keep-off-host"
KEEP_OFF_DELEGATE = "xenpod-keep-off-delegate"

NEW_PODS: Object = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}
LABELLED: Object = {"matchExpressions": [{"key": NAMESPACE_LABEL, "operator": "Exists"}]}
NAMES_NO_CLASS = "!has(object.spec.runtimeClassName)"
CLASS_OF_NAMESPACE = f"namespaceObject.metadata.labels[{json.dumps(NAMESPACE_LABEL)}]"
# A JSON patch needs no schema of pods; "add" is enough, since the pod has no class.
SET_CLASS: Object = {
    "patchType": "JSONPatch",
    "jsonPatch": {
        "expression": f'[JSONPatch{{op: "add", path: "/spec/runtimeClassName", value: {CLASS_OF_NAMESPACE}}}]'
    },
}

_GROUP = "admissionregistration.k8s.io"
_STABLE, _BETA, _ALPHA = Version(1, 36), Version(1, 34), Version(1, 32)
_NETWORK = ("hostNetwork", "the host's network (hostNetwork)")
# The kubelet runs a static pod from a file; the mirror pod only shows the static pod.
_IS_NO_MIRROR = '!("kubernetes.io/config.mirror" in object.metadata.?annotations.orValue({}))'
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

    A pod with a class of ours that asks for namespaces or paths of the host is refused when it is created:
    the author sees the message. Pods of handlers in ``own_namespaces`` may ask for hostPID and hostIPC, since
    they get the namespaces of their zone.
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


def keep_off_delegate(platforms: Sequence[NodePlatform]) -> list[Object]:
    """A ValidatingAdmissionPolicy and its binding, which refuse pods that xenpod-cri would refuse, too.

    Refused is a pod for the delegate, by the node's ``[delegate]``, from a namespace outside of
    ``namespaces``, if the pod may run on a delegate's node: the pod tolerates the taints, or names a node.
    The policy is a default, not a boundary: the scheduler may put a pod elsewhere than the policy assumes,
    and an administrator can remove the policy. [] if no platform has a delegate.
    """
    validations = [_off_delegate(one, one.delegate, platforms) for one in platforms if one.delegate]
    if not validations:
        return []
    variables = {
        "runtimeClass": 'object.spec.?runtimeClassName.orValue("")',
        "hostNetwork": "object.spec.?hostNetwork.orValue(false)",
        "tolerations": "object.spec.?tolerations.orValue([])",
    }
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [NEW_PODS]},
        "matchConditions": [{"name": "is-no-mirror", "expression": _IS_NO_MIRROR}],
        "variables": [{"name": name, "expression": text} for name, text in variables.items()],
        "validations": validations,
    }
    binding = {"policyName": KEEP_OFF_DELEGATE, "validationActions": ["Deny"]}
    return [
        policy_object("v1", "ValidatingAdmissionPolicy", KEEP_OFF_DELEGATE, spec),
        policy_object("v1", "ValidatingAdmissionPolicyBinding", KEEP_OFF_DELEGATE, binding),
    ]


def _off_delegate(platform: NodePlatform, rules: DelegateRules, platforms: Sequence[NodePlatform]) -> Object:
    named = "false"
    if rules.namespaces:
        named = f"namespaceObject.metadata.name.matches({json.dumps(expression(rules.namespaces))})"
    barriers = [one for one in platform.taints if one.effect in ("NoSchedule", "NoExecute")]
    reaches = " && ".join(map(_tolerates, barriers)) or "true"
    goes = " || ".join(f"({one})" for one in _goes_to_delegate(platform, rules, platforms))
    of = f" of the platform {platform.name}" if platform.name else ""
    cause = f"a pod of this namespace does not get a container on the host{of}"
    hint = "it needs a RuntimeClass of zones, or its namespace in [delegate] namespaces of cri.toml"
    return {
        "expression": f'{named} || !({goes}) || !(object.spec.?nodeName.orValue("") != "" || ({reaches}))',
        "message": f"{cause}: {hint}",
        "reason": "Forbidden",
    }


def _goes_to_delegate(
    platform: NodePlatform, rules: DelegateRules, platforms: Sequence[NodePlatform]
) -> list[str]:
    """CEL expressions; a pod is the delegate's if an expression is true, as in ``cri.delegate.owners``."""
    ours = json.dumps([name for one in platforms for name in one.classes])
    found = [f'variables.runtimeClass != "" && !(variables.runtimeClass in {ours})']
    if rules.default == "delegate":
        found.append('variables.runtimeClass == ""')
    elif rules.host_network != "refuse":
        found.append('variables.runtimeClass == "" && variables.hostNetwork')
    if rules.host_network == "delegate":
        mine = json.dumps(list(platform.classes))
        found.append(f"variables.runtimeClass in {mine} && variables.hostNetwork")
    return found


def _tolerates(taint: Taint) -> str:
    """CEL: whether a toleration of the pod is for this taint."""
    key, value, effect = map(json.dumps, (taint.key, taint.value, taint.effect))
    return (
        f'variables.tolerations.exists(one, one.?key.orValue("") in ["", {key}]'
        f' && (!(one.?operator.orValue("") in ["", "Equal"]) || one.?value.orValue("") == {value})'
        f' && one.?effect.orValue("") in ["", {effect}])'
    )


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
