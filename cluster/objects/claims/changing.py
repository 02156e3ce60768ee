"""The common part of policies that change pods: they remove the pods' requests for dom0's memory.

All expressions work in the API server and in Kyverno.
"""

from __future__ import annotations

from cluster.objects.classes import Object
from cluster.objects.kyverno import mutating_policy
from cluster.objects.policies import NEW_PODS, mutating_version, policy_object
from cluster.objects.versions import Version

CLAIMING = "xenpod.dev/zone-claims"
"""Label of the namespaces whose pods get claims, or granules; the value is ``true``."""


def changing_policy(name: str, spec: Object, kubernetes: Version, kyverno: Version | None) -> list[Object]:
    """A policy that changes new pods, of Kyverno or of the API server.

    Invalid: the release of Kubernetes, or of Kyverno if Kyverno is chosen, is too old.
    """
    spec = {"failurePolicy": "Fail", "matchConstraints": new_pods(), **spec}
    if kyverno:
        return [mutating_policy(name, kyverno, spec)]
    version = mutating_version(kubernetes)
    return [
        policy_object(version, "MutatingAdmissionPolicy", name, {**spec, "reinvocationPolicy": "IfNeeded"}),
        policy_object(version, "MutatingAdmissionPolicyBinding", name, {"policyName": name}),
    ]


def new_pods() -> Object:
    """The ``matchConstraints`` of a policy: pods that are created in labelled namespaces."""
    return {
        "namespaceSelector": {"matchLabels": {CLAIMING: "true"}},
        "resourceRules": [NEW_PODS],
    }


def add_patch(path: str, value: str) -> str:
    """A CEL patch that adds ``value``, an expression, at ``path``."""
    return f'JSONPatch{{op: "add", path: "{path}", value: {value}}}'


def patches(wanted: str, *more: str, note: tuple[str, str]) -> str:
    """The patches of a pod for which ``wanted`` is true: ``more``, no memory requests, and an annotation.

    Requests are set to 0, since absent ones would be set to the limits.  ``note``: annotation and text.
    """
    name, text = note
    found = [
        *more,
        _without_requests("containers"),
        _without_requests("initContainers"),
        '(object.spec.?resources.?requests[?"memory"].hasValue() ? '
        '[JSONPatch{op: "replace", path: "/spec/resources/requests/memory", value: "0"}] : [])',
        f"(has(object.metadata.annotations) ? [] : [{add_patch('/metadata/annotations', '{}')}])",
        f"[{add_patch('/metadata/annotations/' + name.replace('/', '~1'), text)}]",
    ]
    return f"!({wanted}) ? [] : {' + '.join(found)}"


def _without_requests(containers: str) -> str:
    names = f"object.spec.{containers}.map(other, other.name)"
    path = f'"/spec/{containers}/" + string({names}.indexOf(one.name)) + "/resources/requests/memory"'
    asking = 'one.?resources.?requests[?"memory"].hasValue()'
    patch = f'JSONPatch{{op: "replace", path: {path}, value: "0"}}'
    found = f"object.spec.{containers}" if containers == "containers" else "variables.starting"
    return f"{found}.filter(one, {asking}).map(one, {patch})"
