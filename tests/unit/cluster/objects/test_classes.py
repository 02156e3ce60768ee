"""Each object, flag and command from platforms."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cluster.objects import classes, kyverno, nodes, output, policies, yamltext
from cluster.objects.output import GenerateOptions
from cluster.objects.platforms import DelegateRules, NodeFile, NodePlatform
from cluster.objects.syntax import Taint
from cluster.objects.versions import Version, version
from daemonkit.faults import Invalid
from daemonkit.namespaces import expression

NODE = NodeFile().platform(["xenpod", "small"])
METAL = NodePlatform(
    name="metal",
    handlers=("xenpod",),
    labels={"example.com/pool": "metal", "on": ""},
    taints=(Taint("zones", "yes", "NoSchedule"), Taint("busy", "", "NoExecute")),
    overhead={"memory": "112Mi", "cpu": "50m"},
    cri_socket=Path("/run/other.sock"),
)
BARE = dataclasses.replace(METAL, name="bare", taints=(), overhead={})
NEW_PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
LABELLED = {"matchExpressions": [{"key": "xenpod.dev/runtime-class", "operator": "Exists"}]}
PATCH = (
    '[JSONPatch{op: "add", path: "/spec/runtimeClassName",'
    ' value: namespaceObject.metadata.labels["xenpod.dev/runtime-class"]}]'
)
MUTATION = {
    "matchConditions": [{"name": "names-no-class", "expression": "!has(object.spec.runtimeClassName)"}],
    "matchConstraints": {"namespaceSelector": LABELLED, "resourceRules": [NEW_PODS]},
    "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": PATCH}}],
    "failurePolicy": "Fail",
}


def read(text: str, yaml: str) -> list[Any]:
    """Read documents by a version of YAML; Kubernetes reads 1.1."""
    reader = YAML(typ="safe", pure=True)
    major, minor = map(int, yaml.split("."))
    reader.version = (major, minor)
    return list(reader.load_all(text))


def test_a_class_has_handler_overhead_selector_and_tolerations() -> None:
    assert classes.runtime_classes([METAL]) == [
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "xenpod-metal"},
            "handler": "xenpod",
            "overhead": {"podFixed": {"memory": "112Mi", "cpu": "50m"}},
            "scheduling": {
                "nodeSelector": {"example.com/pool": "metal", "on": ""},
                "tolerations": [
                    {"key": "zones", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
                    {"key": "busy", "operator": "Exists", "effect": "NoExecute"},
                ],
            },
        }
    ]


def test_a_handler_has_its_own_overhead_in_its_class() -> None:
    node = dataclasses.replace(NODE, overheads={"small": {"memory": "1Gi"}})
    made = classes.runtime_classes([node])
    assert [one["overhead"]["podFixed"] for one in made] == [{"memory": "96Mi"}, {"memory": "1Gi"}]


def test_a_class_without_overhead_and_taints_has_only_the_selector() -> None:
    (found,) = classes.runtime_classes([BARE])
    assert "overhead" not in found
    assert found["scheduling"] == {"nodeSelector": {"example.com/pool": "metal", "on": ""}}


def test_there_is_a_class_for_each_handler_of_each_platform() -> None:
    made = classes.runtime_classes([NODE, METAL, BARE])
    assert [(one["metadata"]["name"], one["handler"]) for one in made] == [
        ("xenpod", "xenpod"),
        ("small", "small"),
        ("xenpod-metal", "xenpod"),
        ("xenpod-bare", "xenpod"),
    ]


@pytest.mark.parametrize(
    ("release", "api"),
    [("1.32", "v1alpha1"), ("1.33", "v1alpha1"), ("1.34", "v1beta1"), ("1.35", "v1beta1"), ("1.36", "v1"),
     ("1.40", "v1"), ("2.0", "v1")],
)  # fmt: skip
def test_the_assigning_policy_has_namespaces_and_classes(release: str, api: str) -> None:
    policy, binding = policies.assign(version(release))
    group = f"admissionregistration.k8s.io/{api}"
    assert policy == {
        "apiVersion": group,
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "xenpod-assign-class"},
        "spec": MUTATION | {"reinvocationPolicy": "IfNeeded"},
    }
    assert binding == {
        "apiVersion": group,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "xenpod-assign-class"},
        "spec": {"policyName": "xenpod-assign-class"},
    }


def test_a_kubernetes_without_mutating_policies_is_refused() -> None:
    with pytest.raises(
        Invalid, match=r"Kubernetes 1.31: it has no MutatingAdmissionPolicy.*\(use --kyverno\)"
    ):
        policies.assign(Version(1, 31))


@pytest.mark.parametrize(
    ("release", "flags"),
    [
        ("1.33", "--feature-gates=MutatingAdmissionPolicy=true "
                 "--runtime-config=admissionregistration.k8s.io/v1alpha1=true"),
        ("1.35", "--feature-gates=MutatingAdmissionPolicy=true "
                 "--runtime-config=admissionregistration.k8s.io/v1beta1=true"),
        ("1.36", ""),
    ],
)  # fmt: skip
def test_flags_of_the_api_server_depend_on_the_release(release: str, flags: str) -> None:
    assert policies.switches(version(release)) == flags


@pytest.mark.parametrize("release", ["1.17", "1.19"])
def test_kyvernos_policy_is_the_same(release: str) -> None:
    assert kyverno.assign(version(release)) == {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "MutatingPolicy",
        "metadata": {"name": "xenpod-assign-class"},
        "spec": MUTATION | {"autogen": {"podControllers": {"controllers": []}}},
    }


@pytest.mark.parametrize("release", ["1.12", "1.16"])
def test_an_older_kyverno_is_refused(release: str) -> None:
    with pytest.raises(Invalid, match=rf"Kyverno {release}: it has no MutatingPolicy v1.* came with 1\.17"):
        kyverno.assign(version(release))


def test_a_policy_keeps_zones_off_the_host() -> None:
    policy, binding = policies.keep_off_host([NODE, METAL])
    assert {one["apiVersion"] for one in (policy, binding)} == {"admissionregistration.k8s.io/v1"}
    assert (policy["kind"], binding["kind"]) == (
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    )
    spec = policy["spec"]
    assert spec["failurePolicy"] == "Fail"
    assert spec["matchConstraints"] == {"resourceRules": [NEW_PODS]}
    assert spec["matchConditions"] == [
        {
            "name": "has-a-zone",
            "expression": "has(object.spec.runtimeClassName)"
            ' && object.spec.runtimeClassName in ["xenpod", "small", "xenpod-metal"]',
        }
    ]
    named = [re.search(r"\((\w+)\)$", one["message"]) for one in spec["validations"]]
    assert [match[1] for match in named if match] == ["hostNetwork", "hostPID", "hostIPC", "hostPath"]
    assert all(
        name[1] in one["expression"] for name, one in zip(named, spec["validations"], strict=True) if name
    )
    assert {one["reason"] for one in spec["validations"]} == {"Forbidden"}
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_a_handler_with_zone_namespaces_permits_host_namespaces() -> None:
    """Pods of this handler may ask for processes and IPC, not for the network; pods of other handlers for
    nothing.
    """
    node = dataclasses.replace(NODE, own_namespaces=frozenset({"small"}))
    policy, _ = policies.keep_off_host([node, METAL])
    found = {one["message"].rpartition("(")[2]: one["expression"] for one in policy["spec"]["validations"]}
    for field in ("hostPID", "hostIPC"):
        assert found[f"{field})"] == (
            f'!has(object.spec.{field}) || !object.spec.{field} || object.spec.runtimeClassName in ["small"]'
        )
    assert found["hostNetwork)"] == "!has(object.spec.hostNetwork) || !object.spec.hostNetwork"


def off_delegate(*found: NodePlatform) -> list[str]:
    """The expressions of the policy that keeps pods off the delegate."""
    policy, binding = policies.keep_off_delegate(found)
    assert (policy["kind"], policy["spec"]["failurePolicy"]) == ("ValidatingAdmissionPolicy", "Fail")
    assert policy["spec"]["matchConstraints"] == {"resourceRules": [NEW_PODS]}
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert {one["reason"] for one in policy["spec"]["validations"]} == {"Forbidden"}
    return [one["expression"] for one in policy["spec"]["validations"]]


def test_without_a_delegate_the_policy_is_left_out() -> None:
    assert policies.keep_off_delegate([NODE, METAL]) == []


def test_the_policy_has_the_namespaces_classes_and_taints_of_the_node() -> None:
    rules = DelegateRules(("kube-system", "calico-*"))
    node = dataclasses.replace(NODE, delegate=rules)
    (found,) = off_delegate(node, METAL)
    named, goes, reaches = found.split(" || !(", 2)
    assert named == f'namespaceObject.metadata.name.matches("{expression(rules.namespaces)}")'
    assert goes == (
        '(variables.runtimeClass != "" && !(variables.runtimeClass in ["xenpod", "small", "xenpod-metal"]))'
        ' || (variables.runtimeClass == ""))'
    )
    assert reaches.startswith(
        'object.spec.?nodeName.orValue("") != "" || (variables.tolerations.exists(one, '
    )
    assert '"xenpod.dev/zones"' in reaches and '== "true"' in reaches and '"NoSchedule"' in reaches


@pytest.mark.parametrize(
    ("default", "network", "classless", "ours"),
    [
        ("delegate", "refuse", '(variables.runtimeClass == "")', False),
        ("xenpod", "classless", '(variables.runtimeClass == "" && variables.hostNetwork)', False),
        ("xenpod", "refuse", "", False),
        ("xenpod", "delegate", '(variables.runtimeClass == "" && variables.hostNetwork)', True),
    ],
)
def test_the_policy_and_the_node_agree_on_pods_of_the_delegate(
    default: str, network: str, classless: str, ours: bool
) -> None:
    """As in ``test_each_pod_gets_its_runtime``."""
    (found,) = off_delegate(dataclasses.replace(METAL, delegate=DelegateRules((), default, network)))
    assert found.startswith("false || ") and classless in found
    assert bool(classless) == ('variables.runtimeClass == ""' in found)
    assert ours == ('(variables.runtimeClass in ["xenpod-metal"] && variables.hostNetwork)' in found)
    assert (
        "of the platform metal"
        in policies.keep_off_delegate([dataclasses.replace(METAL, delegate=DelegateRules())])[0]["spec"][
            "validations"
        ][0]["message"]
    )


def test_nodes_without_taints_are_reached_by_every_pod() -> None:
    (found,) = off_delegate(dataclasses.replace(BARE, delegate=DelegateRules()))
    assert found.endswith('|| !(object.spec.?nodeName.orValue("") != "" || (true))')


def test_commands_for_nodes_set_labels_and_taints() -> None:
    assert nodes.commands(METAL, ["a", "b"]) == (
        "kubectl label --overwrite nodes a b example.com/pool=metal on=\n"
        "kubectl taint --overwrite nodes a b zones=yes:NoSchedule busy:NoExecute\n"
    )
    assert nodes.commands(BARE) == 'kubectl label --overwrite nodes "$NODE" example.com/pool=metal on=\n'


def test_flags_of_the_kubelet_set_labels_and_taints() -> None:
    assert nodes.flag_lines(METAL) == (
        "--node-labels=example.com/pool=metal,on=\n--register-with-taints=zones=yes:NoSchedule,busy:NoExecute\n"
    )
    assert nodes.flag_lines(BARE) == "--node-labels=example.com/pool=metal,on=\n"


@pytest.mark.parametrize("what", ["kubelet-flags", "cluster-api", "cloud-init"])
def test_a_label_forbidden_to_kubelets_is_refused_for_kubelets(what: str) -> None:
    mine = dataclasses.replace(METAL, labels={"node-restriction.kubernetes.io/pool": "a"})
    with pytest.raises(
        Invalid, match="of platform metal: a kubelet may not give its node the label node-restr"
    ):
        output.objects([mine], GenerateOptions((what,)))
        output.texts([mine], GenerateOptions((what,)))
    assert "node-restriction.kubernetes.io/pool=a" in nodes.commands(mine)


def registration(made: dict[str, Any]) -> Any:
    return made["spec"]["template"]["spec"]["joinConfiguration"]["nodeRegistration"]


def test_the_template_of_cluster_api_registers_nodes() -> None:
    made = nodes.kubeadm_config_template(METAL, "v1beta2")
    assert made["apiVersion"] == "bootstrap.cluster.x-k8s.io/v1beta2"
    assert (made["kind"], made["metadata"]) == ("KubeadmConfigTemplate", {"name": "xenpod-metal"})
    assert registration(made) == {
        "criSocket": "unix:///run/other.sock",
        "kubeletExtraArgs": [{"name": "node-labels", "value": "example.com/pool=metal,on="}],
        "taints": [
            {"key": "zones", "value": "yes", "effect": "NoSchedule"},
            {"key": "busy", "effect": "NoExecute"},
        ],
    }


def test_the_older_template_of_cluster_api_registers_nodes() -> None:
    made = nodes.kubeadm_config_template(NODE, "v1beta1")
    assert made["apiVersion"] == "bootstrap.cluster.x-k8s.io/v1beta1"
    assert made["metadata"] == {"name": "xenpod"}
    assert registration(made)["kubeletExtraArgs"] == {"node-labels": "xenpod.dev/zones=true"}
    assert "taints" not in registration(nodes.kubeadm_config_template(BARE, "v1beta1"))


def test_user_data_sets_the_variable_of_kubeadms_unit() -> None:
    (text,) = output.texts([METAL], GenerateOptions(("cloud-init",))).values()
    assert text.startswith("#cloud-config\n")
    ((document,)) = read(text, "1.1")
    (file,) = document["write_files"]
    assert (file["path"], file["permissions"]) == ("/etc/default/kubelet", "0644")
    name, _, value = file["content"].removesuffix("\n").partition("=")
    assert name == "KUBELET_EXTRA_ARGS"
    assert shlex.split(value) == nodes.flag_lines(METAL).splitlines()


def test_every_kind_has_a_file_and_every_platform_its_texts() -> None:
    wanted = GenerateOptions([one for one in output.WHAT if one != "granules"])  # claims exist
    files = output.files_by_kind(output.objects([METAL, BARE], wanted), "yaml")
    assert list(files) == [
        "runtimeclass.yaml",
        "mutatingadmissionpolicy.yaml",
        "mutatingadmissionpolicybinding.yaml",
        "validatingadmissionpolicy.yaml",
        "validatingadmissionpolicybinding.yaml",
        "serviceaccount.yaml",
        "clusterrole.yaml",
        "clusterrolebinding.yaml",
        "daemonset.yaml",
        "configmap.yaml",
        "deviceclass.yaml",
        "resourceclaimtemplate.yaml",
        "kubeadmconfigtemplate.yaml",
    ]
    assert files["runtimeclass.yaml"].count("\n---\n") == 1
    texts = output.texts([METAL, BARE], wanted)
    kinds = ("labels{}.sh", "kubelet-flags{}.txt", "cloud-init{}.cfg")
    each = [kind.format(name) for name in ("-metal", "-bare") for kind in kinds]
    assert list(texts) == ["values.yaml", *each]
    assert list(output.texts([NODE], wanted)) == ["values.yaml", *(kind.format("") for kind in kinds)]


@pytest.mark.parametrize("yaml", ["1.1", "1.2"])
def test_readers_of_any_yaml_see_the_objects(yaml: str) -> None:
    wanted = GenerateOptions(output.WHAT)
    node = dataclasses.replace(NODE, cri_socket=METAL.cri_socket)
    made = output.objects([node, METAL, BARE], wanted)
    text = output.stream(made, "yaml")
    assert read(text, yaml) == made
    assert text == output.stream(output.objects([node, METAL, BARE], wanted), "yaml")
    assert "&id" not in text


HARD = [
    *("on", "No", "y", "null", "~", "1", "1e3", "0x1f", "1:30", "0o7", "1_000", ".inf", "2026-01-31", "True"),
    *(
        "=",
        "<<",
        "a: b",
        "a #b",
        "- a",
        "a\nb\n",
        '"',
        "'",
        "{{ a }}",
        "!x",
        "&x",
        "*x",
        "%x",
        "@x",
        " a",
        "a ",
        "",
    ),
]


@pytest.mark.parametrize("yaml", ["1.1", "1.2"])
@given(value=st.sampled_from(HARD) | st.from_regex(r"[A-Za-z0-9_.:/=-]{0,12}", fullmatch=True))
def test_a_text_stays_a_text(yaml: str, value: str) -> None:
    found = {"a": value, "b": [value], "c": {value: True}}
    assert read(yamltext.document(found), yaml) == [found]


@pytest.mark.parametrize(
    "text", ["1", "1.", "1.x", "1.36.1.1", "", "one.two", "1.99999", " 1.3", "1.3-x", "1.3.1+", "1.3.1 x"]
)
def test_malformed_releases_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a release such as 1.36"):
        version(text)


@pytest.mark.parametrize("text", ["1.34", "v1.34", "1.34.2", "v1.34.1+k3s1", "v1.34.2-gke.1100"])
def test_releases_are_parsed(text: str) -> None:
    assert version(text) == Version(1, 34)
