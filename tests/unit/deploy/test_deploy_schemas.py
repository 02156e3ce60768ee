"""The schemas of Kubernetes objects refuse like an API server or a kubelet."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.manifests import schemas
from tests.support.manifests.sources import read

RULES = "{resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}"
EXAMPLES = f"""
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {{name: zone, labels: {{app.kubernetes.io/name: zone}}}}
handler: zone
overhead: {{podFixed: {{memory: 96Mi, cpu: 100m}}}}
scheduling:
  nodeSelector: {{example.com/zones: "true"}}
  tolerations: [{{key: example.com/zones, operator: Equal, value: "true", effect: NoSchedule}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {{name: assign}}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints: {RULES}
  matchConditions: [{{name: free, expression: "!has(object.spec.runtimeClassName)"}}]
  variables: [{{name: wanted, expression: "'zone'"}}]
  mutations: [{{patchType: JSONPatch, jsonPatch: {{expression: "[]"}}}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {{name: assign}}
spec:
  policyName: assign
  matchResources: {{namespaceSelector: {{matchLabels: {{example.com/zones: "true"}}}}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: guard}}
spec:
  failurePolicy: Fail
  matchConstraints: {RULES}
  matchConditions: [{{name: zone, expression: "true"}}]
  variables: [{{name: volumes, expression: "[]"}}]
  validations: [{{expression: "true", message: No, messageExpression: "'no'", reason: Forbidden}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: guard}}
spec:
  policyName: guard
  validationActions: [Deny]
  matchResources:
    namespaceSelector:
      matchExpressions: [{{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system]}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: agent, namespace: zones}}
spec:
  selector: {{matchLabels: {{app: agent}}}}
  updateStrategy: {{type: RollingUpdate, rollingUpdate: {{maxUnavailable: 10%}}}}
  template:
    metadata: {{labels: {{app: agent}}}}
    spec:
      serviceAccountName: agent
      priorityClassName: system-node-critical
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - {{weight: 100, preference: {{matchExpressions: [{{key: pool, operator: In, values: [a]}}]}}}}
      tolerations: [{{operator: Exists}}]
      securityContext: {{runAsUser: 0, seccompProfile: {{type: RuntimeDefault}}}}
      containers:
      - name: agent
        image: registry.example/agent:1
        args: [run]
        env: [{{name: NODE, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}]
        resources: {{requests: {{cpu: 10m}}, limits: {{memory: 64Mi}}}}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {{drop: [ALL]}}
          readOnlyRootFilesystem: true
        volumeMounts: [{{name: run, mountPath: /run/xenpod, readOnly: true}}]
      volumes: [{{name: run, hostPath: {{path: /run/xenpod, type: Directory}}}}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: agent, namespace: zones}}
automountServiceAccountToken: false
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: agent, namespace: zones}}
data: {{cri.toml: ""}}
---
apiVersion: v1
kind: Namespace
metadata: {{name: zones}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: "zones:agent"}}
rules: [{{apiGroups: [""], resources: [nodes], verbs: [get, patch]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: "zones:agent"}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "zones:agent"}}
subjects: [{{kind: ServiceAccount, name: agent, namespace: zones}}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: zones}}
spec: {{selectors: [{{cel: {{expression: device.driver == "a.b"}}}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: zone, namespace: zones}}
spec:
  spec:
    devices:
      requests:
      - name: zone
        exactly:
          deviceClassName: zones
          selectors: [{{cel: {{expression: "true"}}}}]
          capacity: {{requests: {{memory: 1Gi}}}}
      config:
      - opaque:
          driver: a.b
          parameters: {{apiVersion: xenpod.dev/v1alpha1, kind: ZoneResources, memory: 1Gi}}
---
apiVersion: policies.kyverno.io/v1
kind: MutatingPolicy
metadata: {{name: assign}}
spec:
  failurePolicy: Fail
  evaluation: {{admission: {{enabled: true}}}}
  autogen: {{podControllers: {{controllers: []}}}}
  matchConstraints: {RULES}
  mutations: [{{patchType: ApplyConfiguration, applyConfiguration: {{expression: "Object{{}}"}}}}]
---
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfigTemplate
metadata: {{name: zones}}
spec:
  template:
    spec:
      joinConfiguration:
        nodeRegistration:
          criSocket: unix:///run/xenpod/cri.sock
          kubeletExtraArgs: [{{name: node-labels, value: a=b}}]
          taints: [{{key: example.com/zones, value: "true", effect: NoSchedule}}]
"""
BY_KIND = {one["kind"]: one for one in read(EXAMPLES)}

WRONG: list[tuple[str, str, Any]] = [
    ("RuntimeClass", "metadata/name", "Zone"),
    ("RuntimeClass", "metadata/namespace", "zones"),
    ("RuntimeClass", "metadata/labels", {"a b": "c"}),
    ("RuntimeClass", "metadata/labels", {"a": True}),
    ("RuntimeClass", "handler", "a.b"),
    ("RuntimeClass", "handler", "a" * 64),
    ("RuntimeClass", "overhead/podFixed", {"memory": "96MiB"}),
    ("RuntimeClass", "overhead/podFixed", {"memory": "-1"}),
    ("RuntimeClass", "scheduling/nodeSelector", {"a": "-b"}),
    ("RuntimeClass", "scheduling/tolerations/0", {"operator": "Exists", "key": "a", "value": "b"}),
    ("RuntimeClass", "scheduling/tolerations/0", {"operator": "Equal", "value": "b"}),
    ("RuntimeClass", "scheduling/tolerations/0", {"value": "b"}),
    ("RuntimeClass", "scheduling/tolerations/0", {"key": "a", "effect": "Never"}),
    (
        "RuntimeClass",
        "scheduling/tolerations/0",
        {"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5},
    ),
    ("MutatingAdmissionPolicy", "spec/failurePolicy", "Deny"),
    ("MutatingAdmissionPolicy", "spec/reinvocationPolicy", "Always"),
    ("MutatingAdmissionPolicy", "spec/mutations", []),
    ("MutatingAdmissionPolicy", "spec/mutations/0/patchType", "MergePatch"),
    ("MutatingAdmissionPolicy", "spec/mutations/0/patchType", "ApplyConfiguration"),
    ("MutatingAdmissionPolicy", "spec/mutations/0/applyConfiguration", {"expression": "Object{}"}),
    ("MutatingAdmissionPolicy", "spec/variables/0/name", "a-b"),
    ("MutatingAdmissionPolicy", "spec/paramKind", {"kind": "ConfigMap"}),
    ("MutatingAdmissionPolicyBinding", "spec/policyName", ""),
    ("MutatingAdmissionPolicyBinding", "spec/validationActions", ["Deny"]),
    ("MutatingAdmissionPolicyBinding", "spec/paramRef", {"name": "a"}),
    ("MutatingAdmissionPolicyBinding", "spec/matchResources/matchPolicy", "Same"),
    ("ValidatingAdmissionPolicy", "apiVersion", "admissionregistration.k8s.io/v1beta1"),
    ("ValidatingAdmissionPolicy", "spec/validations", []),
    ("ValidatingAdmissionPolicy", "spec/validations/0/message", "two\nlines"),
    ("ValidatingAdmissionPolicy", "spec/validations/0/reason", "Because"),
    ("ValidatingAdmissionPolicy", "spec/matchConstraints/resourceRules/0/operations", ["create"]),
    ("ValidatingAdmissionPolicyBinding", "spec/validationActions", []),
    ("ValidatingAdmissionPolicyBinding", "spec/validationActions", ["Deny", "Warn"]),
    (
        "ValidatingAdmissionPolicyBinding",
        "spec/matchResources/namespaceSelector/matchExpressions/0",
        {"key": "a", "operator": "In"},
    ),
    (
        "ValidatingAdmissionPolicyBinding",
        "spec/matchResources/namespaceSelector/matchExpressions/0",
        {"key": "a", "operator": "Exists", "values": ["b"]},
    ),
    ("DaemonSet", "spec/selector", {}),
    ("DaemonSet", "spec/updateStrategy/rollingUpdate/maxUnavailable", "ten"),
    ("DaemonSet", "spec/template/spec/containers", []),
    ("DaemonSet", "spec/template/spec/containers/0/name", "an_agent"),
    ("DaemonSet", "spec/template/spec/containers/0/image", "a b"),
    ("DaemonSet", "spec/template/spec/containers/0/securityContext/capabilities/drop", ["CAP_CHOWN"]),
    ("DaemonSet", "spec/template/spec/containers/0/env/0/value", "both"),
    ("DaemonSet", "spec/template/spec/containers/0/volumeMounts/0/mountPath", "run"),
    ("DaemonSet", "spec/template/spec/volumes/0/emptyDir", {}),
    ("DaemonSet", "spec/template/spec/volumes/0/hostPath/type", "Folder"),
    (
        "DaemonSet",
        "spec/template/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/weight",
        0,
    ),
    ("ServiceAccount", "automountServiceAccountToken", "false"),
    ("ConfigMap", "data", {"a/b": ""}),
    ("ConfigMap", "data", {"a": 1}),
    ("Namespace", "metadata/name", "a_b"),
    ("ClusterRole", "rules/0/verbs", []),
    ("ClusterRole", "metadata/name", "a/b"),
    ("ClusterRoleBinding", "roleRef/kind", "Role"),
    ("ClusterRoleBinding", "subjects/0/kind", "Robot"),
    ("DeviceClass", "metadata/namespace", "zones"),
    ("DeviceClass", "spec/selectors/0", {}),
    ("ResourceClaimTemplate", "apiVersion", "resource.k8s.io/v1alpha3"),
    ("ResourceClaimTemplate", "spec/spec/devices/requests", []),
    ("ResourceClaimTemplate", "spec/spec/devices/requests/0/exactly/capacity/requests", {"memory": "lots"}),
    ("MutatingPolicy", "apiVersion", "policies.kyverno.io/v1beta1"),
    ("MutatingPolicy", "spec/evaluation/mode", "Both"),
    ("KubeadmConfigTemplate", "apiVersion", "bootstrap.cluster.x-k8s.io/v1beta1"),
    (
        "KubeadmConfigTemplate",
        "spec/template/spec/joinConfiguration/nodeRegistration/kubeletExtraArgs",
        {"node-labels": "a=b"},
    ),
    (
        "KubeadmConfigTemplate",
        "spec/template/spec/joinConfiguration/nodeRegistration/criSocket",
        "/run/cri.sock",
    ),
    (
        "KubeadmConfigTemplate",
        "spec/template/spec/joinConfiguration/nodeRegistration/taints/0/effect",
        "Never",
    ),
]


def test_each_schema_is_valid_and_has_an_example() -> None:
    for document in schemas.documents().values():
        for schema in document["$defs"].values():
            Draft202012Validator.check_schema(schema)
    assert {kind for _, kind in schemas.kinds()} == set(BY_KIND)


@pytest.mark.parametrize("kind", BY_KIND)
def test_the_example_is_right(kind: str) -> None:
    assert schemas.wrong(BY_KIND[kind], "1.36") == []


@pytest.mark.parametrize("kind", BY_KIND)
def test_an_unknown_field_is_refused_at_every_depth(kind: str) -> None:
    maps = [path for path, value in parts(BY_KIND[kind]) if isinstance(value, dict) and not _free(path)]
    assert () in maps and ("metadata",) in maps
    for path in maps:
        assert schemas.wrong(changed(BY_KIND[kind], (*path, "misspelt"), "x"), "1.36"), path


OTHERS: tuple[object, ...] = (None, [[]], {"a": {}}, 1.5)


@pytest.mark.parametrize("kind", BY_KIND)
def test_a_value_of_another_type_is_refused_everywhere(kind: str) -> None:
    paths = [path for path, _ in parts(BY_KIND[kind]) if path]
    for path in paths:
        for other in OTHERS:
            assert schemas.wrong(changed(BY_KIND[kind], path, other), "1.36"), (path, other)


@pytest.mark.parametrize("kind", BY_KIND)
def test_common_fields_of_objects_are_required(kind: str) -> None:
    for key in ("apiVersion", "kind", "metadata"):
        without = {name: value for name, value in BY_KIND[kind].items() if name != key}
        assert schemas.wrong(without, "1.36"), key
    nameless = copy.deepcopy(BY_KIND[kind])
    del nameless["metadata"]["name"]
    assert schemas.wrong(nameless, "1.36")


@pytest.mark.parametrize(("kind", "path", "value"), WRONG)
def test_a_wrong_object_is_refused(kind: str, path: str, value: Any) -> None:
    """An API server refuses them; image, capability and mount path are refused by a kubelet."""
    keys = tuple(int(key) if key.isdigit() else key for key in path.split("/"))
    assert schemas.wrong(changed(BY_KIND[kind], keys, value), "1.36")


def test_every_kind_has_a_wrong_object() -> None:
    assert {kind for kind, _, _ in WRONG} == set(BY_KIND)


@pytest.mark.parametrize(
    ("api", "since"), [("v1", "1.36"), ("v1beta1", "1.34"), ("v1alpha1", "1.33")], ids=str
)
@pytest.mark.parametrize("kind", ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"])
def test_an_api_is_refused_by_versions_without_the_api(kind: str, api: str, since: str) -> None:
    found = BY_KIND[kind] | {"apiVersion": f"admissionregistration.k8s.io/{api}"}
    takes = [version for version in schemas.VERSIONS if not schemas.wrong(found, version)]
    assert takes == [version for version in schemas.VERSIONS if version >= since]
    assert schemas.needs_enabling(found) == (api != "v1")


def parts(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield a value and everything nested in it, each with its path."""
    yield path, value
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in below:
        yield from parts(one, (*path, key))


def changed(found: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """A copy in which the value at a path is replaced or added; missing mappings are made."""
    made = copy.deepcopy(found)
    at: Any = made
    for key in path[:-1]:
        at = at[key] if isinstance(key, int) else at.setdefault(key, {})
    at[path[-1]] = value
    return made


def _free(path: tuple[str | int, ...]) -> bool:
    """Mappings whose keys the user chooses."""
    free = {"labels", "matchLabels", "nodeSelector", "podFixed", "requests", "limits", "data"}
    return bool(path) and path[-1] in free
