"""The policy that gives pods with a class of ours a claim as large as their limits ask for.

CEL can choose a template by its name, and cannot make an object; so there is a template for each of a few
sizes.  All of it is written without what only one of the API server and Kyverno knows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from daemonkit.faults import Invalid
from protect.generate.claims.templates import room, template_name
from protect.generate.classes import Object
from protect.generate.platforms import NodePlatform
from protect.generate.policies import NEW_PODS, has_class_of, mutating_version, policy_object
from protect.generate.versions import Version

NAME = "xenpod-claim-zones"

NAMESPACE_LABEL = "xenpod.dev/zone-claims"
"""Label of the namespaces whose pods get claims; the value is ``true``."""

CLAIM = "zone"
"""The name of the claim in a pod; a pod that has one of that name already keeps it."""

ANNOTATION = "zones.xenpod.dev/claim"
"""Annotation of a pod that says what the policy did."""

_OVERHEAD = "96Mi"  # memory_overhead of cri.toml
_UNLIMITED = "256Mi"  # memory of a zone whose pod has no limits: of protectd's default profile
_KYVERNO = Version(1, 17)


def claim_policy(
    platforms: Sequence[NodePlatform], sizes: Sequence[int], kubernetes: Version, kyverno: Version | None
) -> list[Object]:
    """The policy that changes pods, and the one that refuses those which no template is large enough for.

    Invalid: the release of Kubernetes, or of Kyverno where that is to do it, is too old.
    """
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": _pods(),
        "variables": _variables(platforms, sizes),
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _PATCHES}}],
    }
    if kyverno:
        return [_mutating_policy(kyverno, spec), *_refuse_the_rest(platforms, sizes)]
    version = mutating_version(kubernetes)
    return [
        policy_object(version, "MutatingAdmissionPolicy", NAME, {**spec, "reinvocationPolicy": "IfNeeded"}),
        policy_object(version, "MutatingAdmissionPolicyBinding", NAME, {"policyName": NAME}),
        *_refuse_the_rest(platforms, sizes),
    ]


def _mutating_policy(kyverno: Version, spec: Object) -> Object:
    if kyverno < _KYVERNO:
        cause = f"the policy needs variables of MutatingPolicy v1, which came with {_KYVERNO}"
        raise Invalid("make the policy for", f"Kyverno {kyverno}", cause, "use the API server's own policy")
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "MutatingPolicy",
        "metadata": {"name": NAME},
        "spec": {**spec, "autogen": {"podControllers": {"controllers": []}}},
    }


def _refuse_the_rest(platforms: Sequence[NodePlatform], sizes: Sequence[int]) -> list[Object]:
    largest = f"{template_name(sizes[-1])}, has room for {room(sizes[-1])}Mi"
    message = (
        f'"its zone needs " + string(variables.need) + "Mi, and the largest template, {largest}:'
        f' give it a claim with the name {CLAIM}"'
    )
    validation = {
        "expression": "!variables.ours || size(variables.own) > 0",
        "messageExpression": message,
        "message": f"it has no claim with the name {CLAIM}",
        "reason": "Forbidden",
    }
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": _pods(),
        "variables": _variables(platforms, sizes),
        "validations": [validation],
    }
    binding = {"policyName": NAME, "validationActions": ["Deny"]}
    return [
        policy_object("v1", "ValidatingAdmissionPolicy", NAME, spec),
        policy_object("v1", "ValidatingAdmissionPolicyBinding", NAME, binding),
    ]


def _pods() -> Object:
    return {
        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: "true"}},
        "resourceRules": [NEW_PODS],
    }


def _variables(platforms: Sequence[NodePlatform], sizes: Sequence[int]) -> list[Object]:
    """CEL variables of both policies.  Sizes are in bytes; only ``need`` and ``rooms`` are in MiB."""
    overheads = {name: one.overhead.get("memory", _OVERHEAD) for one in platforms for name in one.classes}
    unlimited = {
        name: one.overheads.get(handler, {}).get("memory", _UNLIMITED)
        for one in platforms
        for name, handler in one.classes.items()
    }
    claims = "object.spec.?resourceClaims.orValue([])"
    found = {
        # Not as a matchCondition: what did not match is not asked again once another policy gives a class.
        "ours": has_class_of(platforms),
        "own": f'{claims}.filter(claim, claim.name == "{CLAIM}")',
        "starting": "object.spec.?initContainers.orValue([])",
        "sidecars": f"variables.starting.filter(one, {_SIDECAR}).map(one, {_limit('one')}).sum()",
        "limits": _LIMITS,
        "noted": 'object.metadata.?annotations[?"xenpod.dev/memory"].orValue("")',
        "overhead": _bytes(f"{json.dumps(overheads)}[object.spec.runtimeClassName]"),
        "unlimited": _bytes(f"{json.dumps(unlimited)}[object.spec.runtimeClassName]"),
        "need": _NEED,
        "rooms": json.dumps([room(size) for size in sizes]),
        "templates": json.dumps([template_name(size) for size in sizes]),
        "fitting": "variables.rooms.filter(room, room >= variables.need)",
        "template": _TEMPLATE,
    }
    return [{"name": name, "expression": expression} for name, expression in found.items()]


def _bytes(quantity: str) -> str:
    return f"int(quantity({quantity}).asApproximateFloat())"


def _limit(container: str) -> str:
    return _bytes(f'{container}.?resources.?limits[?"memory"].orValue("0")')


_SIDECAR = 'one.?restartPolicy.orValue("") == "Always"'
# As the kubelet adds up limits for the sandbox, or a little more where a sidecar starts after others.
_LIMITS = (
    f"{_limit('object.spec')} > 0 ? {_limit('object.spec')} : variables.sidecars + "
    f"[object.spec.containers.map(one, {_limit('one')}).sum(), "
    f"([0] + variables.starting.filter(one, !({_SIDECAR})).map(one, {_limit('one')})).max()].max()"
)
# As xenpod-cri does: an annotation goes before limits, and limits before the size of the handler.
_NEED = (
    f'((variables.noted != "" ? {_bytes("variables.noted")} : '
    "variables.limits > 0 ? variables.limits + variables.overhead : variables.unlimited) + 1048575) / 1048576"
)
_TEMPLATE = (
    'size(variables.own) > 0 ? variables.own[0].?resourceClaimTemplateName.orValue("") : '
    "size(variables.fitting) > 0 ? "
    'variables.templates[variables.rooms.indexOf(variables.fitting[0])] : ""'
)


def _add(path: str, value: str) -> str:
    return f'JSONPatch{{op: "add", path: "{path}", value: {value}}}'


def _without_requests(containers: str) -> str:
    """Patches that set all requests of memory to 0: left out, they would be set to the limits."""
    names = f"object.spec.{containers}.map(other, other.name)"
    path = f'"/spec/{containers}/" + string({names}.indexOf(one.name)) + "/resources/requests/memory"'
    asking = 'one.?resources.?requests[?"memory"].hasValue()'
    patch = f'JSONPatch{{op: "replace", path: {path}, value: "0"}}'
    found = f"object.spec.{containers}" if containers == "containers" else "variables.starting"
    return f"{found}.filter(one, {asking}).map(one, {patch})"


_CLAIMED = f'{{"name": "{CLAIM}", "resourceClaimTemplateName": string(variables.template)}}'
_NOTE = (
    '(variables.template == "" ? "its own" : variables.template) + " for " + string(variables.need) + '
    '"Mi; no memory is requested of dom0"'
)
_NOTHING_TO_DO = "!variables.ours || (size(variables.own) == 0 && size(variables.fitting) == 0)"
_PATCHES = f"{_NOTHING_TO_DO} ? [] : " + " + ".join(
    [
        f"(has(object.spec.resourceClaims) ? [] : [{_add('/spec/resourceClaims', '[]')}])",
        f"(size(variables.own) > 0 ? [] : [{_add('/spec/resourceClaims/-', _CLAIMED)}])",
        _without_requests("containers"),
        _without_requests("initContainers"),
        '(object.spec.?resources.?requests[?"memory"].hasValue() ? '
        '[JSONPatch{op: "replace", path: "/spec/resources/requests/memory", value: "0"}] : [])',
        f"(has(object.metadata.annotations) ? [] : [{_add('/metadata/annotations', '{}')}])",
        f"[{_add('/metadata/annotations/' + ANNOTATION.replace('/', '~1'), _NOTE)}]",
    ]
)
