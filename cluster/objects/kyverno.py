"""The policy of ``policies.assign``, which assigns classes, for clusters with Kyverno."""

from __future__ import annotations

from cluster.objects.classes import Object
from cluster.objects.policies import ASSIGN, LABELLED, NAMES_NO_CLASS, NAMESPACE_LABEL, NEW_PODS, SET_CLASS
from cluster.objects.versions import Version

# The first release of Kyverno with each version of MutatingPolicy.  v1beta1 is left out: in 1.16 it has no
# patchType, and later releases have v1.
_VERSIONS = ((Version(1, 17), "v1"), (Version(1, 15), "v1alpha1"))


def assign(kyverno: Version) -> Object:
    """A MutatingPolicy in the newest version that the release has, or a ClusterPolicy for older releases.

    Only pods are changed, not the templates of Deployments and the like, which would then differ from their
    manifests.
    """
    for since, version in _VERSIONS:
        if kyverno >= since:
            return _mutating_policy(version)
    return _cluster_policy()


def _mutating_policy(version: str) -> Object:
    return {
        "apiVersion": f"policies.kyverno.io/{version}",
        "kind": "MutatingPolicy",
        "metadata": {"name": ASSIGN},
        "spec": {
            "failurePolicy": "Fail",
            "autogen": {"podControllers": {"controllers": []}},
            "matchConstraints": {"namespaceSelector": LABELLED, "resourceRules": [NEW_PODS]},
            "matchConditions": [{"name": "names-no-class", "expression": NAMES_NO_CLASS}],
            "mutations": [SET_CLASS],
        },
    }


def _cluster_policy() -> Object:
    """A ClusterPolicy, in which ``+(key)`` adds a key only where there is none."""
    pods = {"kinds": ["Pod"], "operations": ["CREATE"], "namespaceSelector": LABELLED}
    look_up = {
        "urlPath": "/api/v1/namespaces/{{ request.namespace }}",
        "jmesPath": f'metadata.labels."{NAMESPACE_LABEL}"',
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {
            "name": ASSIGN,
            "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
        },
        "spec": {
            "background": False,
            "rules": [
                {
                    "name": "assign-class",
                    "match": {"any": [{"resources": pods}]},
                    "context": [{"name": "class", "apiCall": look_up}],
                    "mutate": {
                        "patchStrategicMerge": {"spec": {"+(runtimeClassName)": "{{ class }}"}},
                    },
                }
            ],
        },
    }
