"""``--critical``: add-ons tolerate the taint and prefer their nodes; comments and other values stay."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cluster.objects.manifests.document import ManifestError, edited
from cluster.objects.manifests.plans import ADDONS, DEFAULT_LABEL, Critical

TOLERATION = {"key": "CriticalAddonsOnly", "operator": "Exists"}
EXPRESSION = {"key": "xenpod.dev/pool", "operator": "In", "values": ["addons"]}
TERM = {"weight": 100, "preference": {"matchExpressions": [EXPRESSION]}}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def read(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def changed(text: str, critical: Critical | None = None) -> str:
    critical = critical or Critical()
    after, _ = edited(text, ADDONS, critical.plan)
    assert edited(after, ADDONS, critical.plan) == (after, [])
    return after


def daemon_set(spec: str) -> str:
    """A DaemonSet with the given lines in its pod spec, without indentation."""
    inner = "".join(f"      {line}\n" if line else "\n" for line in spec.splitlines())
    head = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: agent}\n"
    return f"{head}spec:\n  template:\n    spec:\n{inner}"


def pod(text: str) -> Any:
    return read(text)["spec"]["template"]["spec"]


ADDED = """\
      tolerations:
      - key: CriticalAddonsOnly
        operator: Exists
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            preference:
              matchExpressions:
              - key: xenpod.dev/pool
                operator: In
                values:
                - addons
"""


def test_both_are_added_in_the_form_of_the_file() -> None:
    text = daemon_set("# the containers\ncontainers:\n- name: a   # the first")
    assert changed(text) == text + ADDED
    assert changed(f"a:   b\n---\n{text}---\nc:   d\n") == f"a:   b\n---\n{text}{ADDED}---\nc:   d\n"
    indented = changed(daemon_set("containers:\n  - name: a"))
    assert "      tolerations:\n        - key: CriticalAddonsOnly\n          operator: Exists\n" in indented


def test_existing_lists_get_an_item() -> None:
    text = daemon_set(
        "tolerations:\n# of GPUs\n- key: nvidia.com/gpu\n  operator: Exists  # any\n"
        "affinity:\n  nodeAffinity:\n    requiredDuringSchedulingIgnoredDuringExecution: {}\n"
        f"    {PREFERRED}:\n    - weight: 1\n      preference: {{}}\n"
        "  podAffinity: {}\ncontainers: []"
    )
    after = changed(text)
    assert pod(after)["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}, TOLERATION]
    assert pod(after)["affinity"]["nodeAffinity"][PREFERRED] == [{"weight": 1, "preference": {}}, TERM]
    assert "  operator: Exists  # any\n      - key: CriticalAddonsOnly\n" in after and "# of GPUs" in after


@pytest.mark.parametrize(
    "last",
    [
        "affinity:\n  podAffinity: {}",
        "tolerations:\n- key: a",
        "tolerations:\n  - key: a",
        "affinity:\n  nodeAffinity:",
    ],
)
def test_a_pod_may_end_with_either_key(last: str) -> None:
    after = pod(changed(daemon_set(f"containers: []\n{last}")))
    assert after["tolerations"][-1] == TOLERATION
    assert after["affinity"]["nodeAffinity"] == {PREFERRED: [TERM]}
    assert set(after) == {"containers", "tolerations", "affinity"}


@pytest.mark.parametrize("nothing", ["", " ~", " null", " []", "   # none"])
def test_a_key_without_a_value_gets_a_value(nothing: str) -> None:
    text = daemon_set(f"tolerations:{nothing}\naffinity:{nothing.replace('[]', '{}')}\ncontainers: []")
    after = changed(text)
    assert pod(after) == {
        "tolerations": [TOLERATION],
        "affinity": {"nodeAffinity": {PREFERRED: [TERM]}},
        "containers": [],
    }
    assert after.count("# none") == text.count("# none")


@pytest.mark.parametrize("last", ["affinity:", "affinity:\n  nodeAffinity:", "tolerations:"])
def test_a_key_without_a_value_may_end_the_file(last: str) -> None:
    text = daemon_set(f"containers: []\n{last}").rstrip("\n")
    assert pod(changed(text)) == {
        "containers": [],
        "tolerations": [TOLERATION],
        "affinity": {"nodeAffinity": {PREFERRED: [TERM]}},
    }


def test_json_stays_json() -> None:
    text = '{"kind": "DaemonSet", "spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}}'
    assert json.loads(changed(text))["spec"]["template"]["spec"]["tolerations"] == [TOLERATION]


@pytest.mark.parametrize(
    "covered",
    [
        "{key: CriticalAddonsOnly, operator: Exists}",
        "{operator: Exists}",
        '{"operator": "Exists"}',
    ],
)
def test_a_covering_toleration_is_enough(covered: str) -> None:
    assert "key: CriticalAddonsOnly\n" not in changed(daemon_set(f"tolerations: [{covered}]"))


@pytest.mark.parametrize(
    "partly",
    [
        "{key: CriticalAddonsOnly, operator: Exists, effect: NoSchedule}",
        "{key: CriticalAddonsOnly}",
        "{key: a}",
    ],
)
def test_a_toleration_of_a_single_effect_is_not_enough(partly: str) -> None:
    assert pod(changed(daemon_set(f"tolerations: [{partly}]")))["tolerations"].count(TOLERATION) == 1


def test_a_term_of_more_than_the_label_prefers_other_nodes() -> None:
    """All its expressions must match: the node without the other label is not preferred."""
    label = "{key: xenpod.dev/pool, operator: In, values: [addons]}"
    zone = "{key: zone, operator: In, values: [b]}"
    text = daemon_set(
        "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution:"
        f" [{{weight: 1, preference: {{matchExpressions: [{label}, {zone}]}}}}]}}}}"
    )
    terms = pod(changed(text))["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [len(one["preference"]["matchExpressions"]) for one in terms] == [2, 1]


def test_the_label_is_a_parameter() -> None:
    assert DEFAULT_LABEL == "xenpod.dev/pool=addons"
    after = changed(daemon_set("containers: []"), Critical("example.com/addons"))
    (term,) = pod(after)["affinity"]["nodeAffinity"][PREFERRED]
    assert term["preference"]["matchExpressions"] == [{"key": "example.com/addons", "operator": "Exists"}]
    after = changed(after, Critical("kind=on"))
    terms = pod(after)["affinity"]["nodeAffinity"][PREFERRED]
    assert terms[1]["preference"]["matchExpressions"] == [{"key": "kind", "operator": "In", "values": ["on"]}]


@pytest.mark.parametrize("label", ["", "=x", "a b", "Upper.Case/x", "a/b/c", "a=-", "a\n", "a" * 64])
def test_an_invalid_label_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match="label"):
        Critical(label)


WORKLOADS = "---\n".join(
    f"kind: {kind}\nmetadata: {{name: {name}{space}}}\nspec: {{template: {{spec: {{containers: []}}}}}}\n"
    for kind, name, space in [
        ("DaemonSet", "a", ""),
        ("DaemonSet", "b", ", namespace: kube-system"),
        ("Deployment", "b", ", namespace: kube-system"),
        ("Job", "b", ", namespace: kube-system"),
    ]
)


def test_every_daemon_set_or_the_named_add_ons() -> None:
    lines = [line.partition("{name")[2] for line in changed(WORKLOADS).splitlines() if "Critical" in line]
    assert len(lines) == 2
    critical = Critical(addons=["kube-system/b", "default/none"])
    assert named(critical) == {"DaemonSet kube-system/b", "Deployment kube-system/b"}
    assert critical.missing == {"default/none"}
    assert named(Critical(addons=["default/a"])) == {"DaemonSet default/a"}


def named(critical: Critical) -> set[str]:
    return {one.partition(":")[0] for one in edited(WORKLOADS, ADDONS, critical.plan)[1]}


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (daemon_set("tolerations: &t [{key: a}]\nother: *t"), 8, "write out the alias"),
        (daemon_set("tolerations: none"), 0, "type that Kubernetes"),
        (daemon_set("tolerations: {a: b}"), 0, "type that Kubernetes"),
        (daemon_set("affinity: {nodeAffinity: [a]}"), 0, "type that Kubernetes"),
    ],
)
def test_an_unchangeable_document_is_refused(text: str, line: int, says: str) -> None:
    with pytest.raises(ManifestError, match=says) as caught:
        changed(text)
    assert caught.value.line == line


LEAVES = st.sampled_from(["a", "", "two\nlines", "two\nlines\n", "#", "- x", "~", "k: v", "x\n\n\n"])
EXTRA = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
TOLERATIONS: st.SearchStrategy[Any] = (
    st.none() | st.just([]) | st.just([{"key": "a"}]) | st.just([TOLERATION]) | st.just([{"key": "a\nb"}, {}])
)
AFFINITY: st.SearchStrategy[Any] = st.sampled_from([
    None, {}, {"nodeAffinity": {}}, {"nodeAffinity": {PREFERRED: []}},
    {"podAffinity": {"a": [{"b": "c\nd\n"}]}},
    {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchFields": []}}], "z": "last"}},
    {"nodeAffinity": {PREFERRED: [TERM]}},
])  # fmt: skip


@given(EXTRA, TOLERATIONS, AFFINITY, st.permutations(["first", "tolerations", "affinity", "last"]), st.data())
def test_any_daemon_set_keeps_the_rest(
    extra: Any, tolerations: Any, affinity: Any, order: list[str], data: Any
) -> None:
    """Compares ruamel.yaml's reading of both texts, for many forms of the same values."""
    values = {"first": extra, "tolerations": tolerations, "affinity": affinity, "last": extra}
    spec = {key: values[key] for key in order}
    for key in ("tolerations", "affinity"):
        if spec[key] is None and data.draw(st.booleans(), label=f"without {key}"):
            del spec[key]
    document = {"kind": "DaemonSet", "spec": {"template": {"spec": copy.deepcopy(spec)}}}
    text = _written(document, data)
    wanted = dict(spec)
    if TOLERATION not in (spec.get("tolerations") or []):
        wanted["tolerations"] = [*(spec.get("tolerations") or []), TOLERATION]
    wanted["affinity"] = copy.deepcopy(spec.get("affinity") or {})
    terms = wanted["affinity"].setdefault("nodeAffinity", {}).setdefault(PREFERRED, [])
    if TERM not in terms:
        terms.append(TERM)
    after = changed(text)
    document["spec"]["template"]["spec"] = wanted  # type: ignore[index]
    assert read(after) == document


def _written(document: object, data: Any) -> str:
    yaml = YAML()
    yaml.representer.ignore_aliases = lambda value: True
    yaml.default_flow_style = data.draw(st.sampled_from([False, None, True]), label="flow")
    dash = data.draw(st.sampled_from([0, 2]), label="indent of dashes")
    yaml.indent(mapping=data.draw(st.sampled_from([2, 4]), label="indent"), sequence=dash + 2, offset=dash)
    stream = io.StringIO()
    yaml.dump(document, stream)
    text = stream.getvalue()
    if data.draw(st.booleans(), label="without the last newline"):
        text = text.rstrip("\n") if not text.rstrip("\n").endswith(("|", "|+", "|-")) else text
    return text.replace("\n", "\r\n") if data.draw(st.booleans(), label="carriage returns") else text
