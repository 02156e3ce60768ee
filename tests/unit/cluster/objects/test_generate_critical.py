"""``--critical``: add-ons tolerate the taint and prefer their nodes; the rest of the file stays as it was."""

from __future__ import annotations

import copy
import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cluster.objects.manifests import folder
from cluster.objects.manifests.critical import DEFAULT_LABEL, Critical
from cluster.objects.manifests.yamltree import ManifestError

TOLERATION = {"key": "CriticalAddonsOnly", "operator": "Exists"}
EXPRESSION = {"key": "xenpod.dev/pool", "operator": "In", "values": ["addons"]}
TERM = {"weight": 100, "preference": {"matchExpressions": [EXPRESSION]}}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def read(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def changed(text: str, critical: Critical | None = None) -> str:
    critical = critical or Critical()
    after = folder.applied(text, critical.plan(text))
    assert critical.plan(after) == []
    return after


def daemon_set(spec: str) -> str:
    """A DaemonSet whose pod spec has these lines, given without indentation."""
    inner = "".join(f"      {line}\n" if line else "\n" for line in spec.splitlines())
    head = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: agent}\n"
    return f"{head}spec:\n  template:\n    spec:\n{inner}"


def pod(text: str) -> Any:
    return read(text)["spec"]["template"]["spec"]


def test_both_are_added_in_the_form_of_the_file() -> None:
    text = daemon_set("# what runs\ncontainers:\n- name: a   # the first\n# the end")
    added = """\
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
    at = text.index("      # the end")
    assert changed(text) == text[:at] + added + text[at:]
    indented = changed(daemon_set("containers:\n  - name: a"))
    assert "      tolerations:\n        - key: CriticalAddonsOnly\n          operator: Exists\n" in indented


def test_lists_that_are_there_get_one_more_item() -> None:
    text = daemon_set(
        "tolerations:\n# of GPUs\n- key: nvidia.com/gpu\n  operator: Exists  # any\n"
        "affinity:\n  nodeAffinity:\n    requiredDuringSchedulingIgnoredDuringExecution: {}\n"
        f"    {PREFERRED}:\n    - weight: 1\n      preference: {{}}\n"
        "  podAffinity: {}\ncontainers: []"
    )
    after = changed(text)
    assert pod(after)["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}, TOLERATION]
    assert pod(after)["affinity"]["nodeAffinity"][PREFERRED] == [{"weight": 1, "preference": {}}, TERM]
    assert "  operator: Exists  # any\n      - key: CriticalAddonsOnly\n" in after
    kept = iter(after.splitlines())
    assert all(line in kept for line in text.splitlines())  # each, in their order


@pytest.mark.parametrize(
    "last",
    [
        "affinity:\n  podAffinity: {}",
        "tolerations:\n- key: a",
        "tolerations:\n  - key: a",
        "affinity:\n  nodeAffinity:",
    ],
)
def test_what_ends_where_the_pod_ends_keeps_its_place(last: str) -> None:
    after = pod(changed(daemon_set(f"containers: []\n{last}")))
    assert after["tolerations"][-1] == TOLERATION
    assert after["affinity"]["nodeAffinity"] == {PREFERRED: [TERM]}
    assert set(after) == {"containers", "tolerations", "affinity"}


@pytest.mark.parametrize("nothing", ["", " ~", " null", " []", "   # none"])
def test_a_key_without_a_value_gets_one(nothing: str) -> None:
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
    import json

    text = '{"kind": "DaemonSet", "spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}}'
    assert json.loads(changed(text))["spec"]["template"]["spec"]["tolerations"] == [TOLERATION]


@pytest.mark.parametrize(
    "covered",
    [
        "{key: CriticalAddonsOnly, operator: Exists}",
        "{operator: Exists}",
        '{key: "", operator: Exists, effect: ""}',
    ],
)
def test_a_toleration_that_covers_the_taint_is_enough(covered: str) -> None:
    assert "key: CriticalAddonsOnly\n" not in changed(daemon_set(f"tolerations: [{covered}]"))


@pytest.mark.parametrize(
    "partly",
    [
        "{key: CriticalAddonsOnly, operator: Exists, effect: NoSchedule}",
        "{key: CriticalAddonsOnly}",
        "{key: a}",
    ],
)
def test_one_that_covers_only_some_of_it_is_not(partly: str) -> None:
    assert pod(changed(daemon_set(f"tolerations: [{partly}]")))["tolerations"].count(TOLERATION) == 1


def test_a_term_of_more_than_the_label_prefers_other_nodes() -> None:
    """All its expressions must match, so it does not prefer add-on nodes without the other label."""
    label = "{key: xenpod.dev/pool, operator: In, values: [addons]}"
    zone = "{key: zone, operator: In, values: [b]}"
    text = daemon_set(
        "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution:"
        f" [{{weight: 1, preference: {{matchExpressions: [{label}, {zone}]}}}}]}}}}"
    )
    terms = pod(changed(text))["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [len(one["preference"]["matchExpressions"]) for one in terms] == [1, 2]


def test_the_label_is_a_parameter() -> None:
    assert DEFAULT_LABEL == "xenpod.dev/pool=addons"
    after = changed(daemon_set("containers: []"), Critical("example.com/addons"))
    (term,) = pod(after)["affinity"]["nodeAffinity"][PREFERRED]
    assert term["preference"]["matchExpressions"] == [{"key": "example.com/addons", "operator": "Exists"}]
    after = changed(after, Critical("kind=on"))
    terms = pod(after)["affinity"]["nodeAffinity"][PREFERRED]
    assert terms[1]["preference"]["matchExpressions"] == [{"key": "kind", "operator": "In", "values": ["on"]}]


@pytest.mark.parametrize("label", ["", "=x", "a b", "Upper.Case/x", "a/b/c", "a=-", "a\n", "a" * 64])
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match="not a label"):
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


def test_every_daemon_set_or_what_is_named() -> None:
    lines = [line.partition("{name")[2] for line in changed(WORKLOADS).splitlines() if "Critical" in line]
    assert len(lines) == 2
    critical = Critical(addons=["kube-system/b", "default/none"])
    what = {edit.what.partition(":")[0] for edit in critical.plan(WORKLOADS)}
    assert what == {"DaemonSet kube-system/b", "Deployment kube-system/b"}
    assert critical.missing() == ["default/none"]
    assert {edit.what.partition(":")[0] for edit in Critical(addons=["default/a"]).plan(WORKLOADS)} == {
        "DaemonSet default/a"
    }


ADDON = "{kind: DaemonSet, spec: {template: {spec"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (daemon_set("tolerations: &t [{key: a}]\nother: *t"), 7, "shared"),
        (f"kind: List\nx: &t\n- key: a\nitems:\n- {ADDON}: {{tolerations: *t}}}}}}}}\n", 5, "shared"),
        (f"kind: List\nx: &x {{tolerations: [a]}}\nitems:\n- {ADDON}: {{<<: *x}}}}}}}}\n", 4, "merged"),
        (f"kind: List\nitems:\n- {{kind: Pod, spec: &s {{a: b}}}}\n- {ADDON}: *s}}}}}}\n", 4, "shared"),
        (daemon_set("tolerations: none"), 7, "not what Kubernetes has"),
        (daemon_set("tolerations: {a: b}"), 7, "not what Kubernetes has"),
        (daemon_set("affinity: {nodeAffinity: []}"), 7, "not what Kubernetes has"),
    ],
)  # fmt: skip
def test_what_cannot_be_changed_says_where(text: str, line: int, says: str) -> None:
    with pytest.raises(ManifestError, match=says) as caught:
        Critical().plan(text)
    assert caught.value.line == line


def test_a_form_that_cannot_be_changed_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text("kind: DaemonSet\nspec: {template: {spec: !odd\n {a: b}}}\n")
    outcome = folder.change(tmp_path, Critical().plan, dry_run=False)
    assert outcome.errors == [] and pod(path.read_text().replace("!odd", ""))["tolerations"] == [TOLERATION]


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
    assert _sorted(read(after)) == _sorted(document)
    kept = iter(re.split(r"(\W)", after))
    assert all(part in kept for part in re.split(r"(\W)", text) if part != "null"), "something was taken out"


def _written(document: object, data: Any) -> str:
    yaml = YAML()
    yaml.default_flow_style = data.draw(st.sampled_from([False, None, True]), label="flow")
    dash = data.draw(st.sampled_from([0, 2]), label="indent of dashes")
    yaml.indent(mapping=data.draw(st.sampled_from([2, 4]), label="indent"), sequence=dash + 2, offset=dash)
    stream = io.StringIO()
    yaml.dump(document, stream)
    text = stream.getvalue()
    if data.draw(st.booleans(), label="without the last newline"):
        text = text.rstrip("\n") if not text.rstrip("\n").endswith(("|", "|+", "|-")) else text
    return text.replace("\n", "\r\n") if data.draw(st.booleans(), label="carriage returns") else text


def _sorted(value: Any) -> Any:
    """The value with terms and tolerations sorted: in brackets ours is inserted first."""
    if isinstance(value, dict):
        return {key: _sorted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return sorted((_sorted(inner) for inner in value), key=repr)
    return value
