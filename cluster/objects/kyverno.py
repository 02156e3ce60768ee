"""The policies that change pods, for clusters with Kyverno."""

from __future__ import annotations

from cluster.objects.classes import Object
from cluster.objects.policies import ASSIGN, LABELLED, NAMES_NO_CLASS, NEW_PODS, SET_CLASS
from cluster.objects.versions import Version
from daemonkit.faults import Invalid

_SINCE = Version(1, 17)


def assign(kyverno: Version) -> Object:
    """The policy of ``policies.assign``, which assigns classes.  Invalid: Kyverno is too old."""
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"namespaceSelector": LABELLED, "resourceRules": [NEW_PODS]},
        "matchConditions": [{"name": "names-no-class", "expression": NAMES_NO_CLASS}],
        "mutations": [SET_CLASS],
    }
    return mutating_policy(ASSIGN, kyverno, spec)


def mutating_policy(name: str, kyverno: Version, spec: Object) -> Object:
    """A MutatingPolicy.  Invalid: Kyverno is too old.

    Only pods are changed, not the templates of Deployments and the like, which would then differ from their
    manifests.
    """
    if kyverno < _SINCE:
        cause = f"it has no MutatingPolicy v1, which came with {_SINCE}"
        hint = f"upgrade Kyverno to {_SINCE}, or use the API server's own policy"
        raise Invalid("make the policy for", f"Kyverno {kyverno}", cause, hint)
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "MutatingPolicy",
        "metadata": {"name": name},
        "spec": {**spec, "autogen": {"podControllers": {"controllers": []}}},
    }
