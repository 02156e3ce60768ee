"""The policy that gives pods with a class of ours a claim as large as their limits ask for.

CEL can choose a template by name, and cannot make an object. A template exists for each of a few sizes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from cluster.objects.claims.changing import CLAIMING, add_patch, changing_policy, new_pods, patches
from cluster.objects.claims.need import variables
from cluster.objects.claims.templates import CLASS, claims_version, room, template_name
from cluster.objects.classes import Object
from cluster.objects.platforms import NodePlatform
from cluster.objects.policies import policy_object
from cluster.objects.versions import Version

NAME = "xenpod-claim-zones"

CLAIM = "zone"
"""The name of the claim in a pod. A pod with a claim of this name keeps the claim, if its class is ours."""

OWN_CLAIMS = "xenpod-claims-of-zones"
"""The policy that checks these claims after their creation from templates."""

ANNOTATION = "zones.xenpod.dev/claim"
"""Annotation of a pod: the policy's decision."""


def claim_policy(
    platforms: Sequence[NodePlatform], sizes: Sequence[int], kubernetes: Version, kyverno: Version | None
) -> list[Object]:
    """Three policies: the first changes pods, the others refuse.

    Refused are pods too large for every template, and claims of another driver under the name of our claim.
    Invalid: the release of Kubernetes, or of Kyverno if Kyverno runs the policies, is too old.
    """
    mutation: Object = {
        "variables": _variables(platforms, sizes),
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _PATCHES}}],
    }
    return [
        *changing_policy(NAME, mutation, kubernetes, kyverno),
        *_refuse_the_rest(platforms, sizes),
        *_refuse_other_drivers(kubernetes),
    ]


def _refuse_other_drivers(kubernetes: Version) -> list[Object]:
    """A policy for claims from a pod's template: CEL sees the class in the claim, not in the pod."""
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {CLAIMING: "true"}},
            "resourceRules": [
                {
                    "apiGroups": ["resource.k8s.io"],
                    "apiVersions": [claims_version(kubernetes)],
                    "operations": ["CREATE"],
                    "resources": ["resourceclaims"],
                }
            ],
        },
        "matchConditions": [{"name": "is-of-a-zone", "expression": _IS_OF_A_ZONE}],
        "validations": [
            {
                "expression": _OF_OUR_CLASS,
                "message": f"a claim with the name {CLAIM} is for zone memory, of the device class {CLASS}",
                "reason": "Forbidden",
            }
        ],
    }
    binding = {"policyName": OWN_CLAIMS, "validationActions": ["Deny"]}
    return [
        policy_object("v1", "ValidatingAdmissionPolicy", OWN_CLAIMS, spec),
        policy_object("v1", "ValidatingAdmissionPolicyBinding", OWN_CLAIMS, binding),
    ]


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
    by_template = {
        "expression": f"!variables.ours || variables.own.all(claim, {_BY_TEMPLATE})",
        "message": f"its claim with the name {CLAIM} has to come from a template: resourceClaimTemplateName",
        "reason": "Forbidden",
    }
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": new_pods(),
        "variables": _variables(platforms, sizes),
        "validations": [validation, by_template],
    }
    binding = {"policyName": NAME, "validationActions": ["Deny"]}
    return [
        policy_object("v1", "ValidatingAdmissionPolicy", NAME, spec),
        policy_object("v1", "ValidatingAdmissionPolicyBinding", NAME, binding),
    ]


def _variables(platforms: Sequence[NodePlatform], sizes: Sequence[int]) -> list[Object]:
    """CEL variables of both policies."""
    claims = "object.spec.?resourceClaims.orValue([])"
    more = {
        "own": f'{claims}.filter(claim, claim.name == "{CLAIM}")',
        "rooms": json.dumps([room(size) for size in sizes]),  # MiB
        "templates": json.dumps([template_name(size) for size in sizes]),
        "fitting": "variables.rooms.filter(room, room >= variables.need)",
        "template": _TEMPLATE,
    }
    return variables(platforms, more)


# The controller of claims writes this annotation, with the claim's name in its pod.
_IS_OF_A_ZONE = (
    f'object.metadata.?annotations[?"resource.kubernetes.io/pod-claim-name"].orValue("") == "{CLAIM}"'
)
_OF_OUR_CLASS = (
    "object.spec.?devices.?requests.orValue([]).exists(one, "
    f'one.?exactly.?deviceClassName.orValue("") == "{CLASS}" || '
    "(size(one.?firstAvailable.orValue([])) > 0 && "
    f'one.firstAvailable.all(other, other.deviceClassName == "{CLASS}")))'
)
_BY_TEMPLATE = 'claim.?resourceClaimTemplateName.orValue("") != ""'
_TEMPLATE = (
    'size(variables.own) > 0 ? variables.own[0].?resourceClaimTemplateName.orValue("") : '
    "size(variables.fitting) > 0 ? "
    'variables.templates[variables.rooms.indexOf(variables.fitting[0])] : ""'
)


_CLAIMED = f'{{"name": "{CLAIM}", "resourceClaimTemplateName": string(variables.template)}}'
_NOTE = (
    '(variables.template == "" ? "its own" : variables.template) + " for " + string(variables.need) + '
    '"Mi; no memory is requested of dom0"'
)
_PATCHES = patches(
    "variables.ours && (size(variables.own) > 0 || size(variables.fitting) > 0)",
    f"(has(object.spec.resourceClaims) ? [] : [{add_patch('/spec/resourceClaims', '[]')}])",
    f"(size(variables.own) > 0 ? [] : [{add_patch('/spec/resourceClaims/-', _CLAIMED)}])",
    note=(ANNOTATION, _NOTE),
)
