"""``--fill``: pods get the class of a platform, comments and other values stay, broken files do no harm."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cluster.objects.manifests import folder, plans
from cluster.objects.manifests.document import ManifestError, edited

CLASS = "xenpod-metal"
PLAN = functools.partial(plans.fill, runtime_class=CLASS)

EVERY_KIND = """\
# A comment at the top.
kind: Pod
apiVersion: v1
spec: {runtimeClassName: xenpod, containers: []}   # flow
---
# Another one.
apiVersion: v1
kind: List
items:
- kind: Deployment
  spec:
    template:
      spec:
        runtimeClassName: "xenpod"      # quoted
        other: 'text'
- kind: StatefulSet
  spec: {template: {spec: {"runtimeClassName": 'xenpod'}}}
- kind: DaemonSet
  spec:
    template:
      spec:
        runtimeClassName: xenpod   # as it is
- kind: Job
  spec:
    template:
      spec:
        # The class.
        runtimeClassName: xenpod
- kind: CronJob
  spec: {jobTemplate: {spec: {template: {spec: {runtimeClassName: xenpod}}}}}
- kind: PodTemplate
  template: {spec: {runtimeClassName: xenpod}}
---
kind:   ConfigMap
data: {a:   b}
---
kind: PodList
items:
- spec:
    runtimeClassName: xenpod
"""


def filled(text: str) -> str:
    return edited(text, plans.PODS, PLAN)[0]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_pods_of_every_kind_get_the_class(newline: str) -> None:
    text = EVERY_KIND.replace("\n", newline)
    expected = re.sub(r"""(runtimeClassName"?: ["']?)xenpod\b""", rf"\1{CLASS}", text)
    assert expected.count(CLASS) == 8
    assert _spaced(filled(text)) == _spaced(expected)
    assert filled(filled(text)) == filled(text)


def _spaced(text: str) -> str:
    """The text with one blank before each comment: a longer value moves the comment."""
    return re.sub(r" +#", " #", text)


@pytest.mark.parametrize("indent", ["  ", "    "])
@pytest.mark.parametrize("dash", ["", "  "])
def test_filled_class_keeps_the_indentation(indent: str, dash: str) -> None:
    text = (
        f"kind: Pod\nspec:\n{indent}containers:\n{indent}{dash}- name: a\n{indent}{dash}  image: b\n"
        f"{indent}runtimeClassName: xenpod\n"
    )
    assert filled(text) == text.replace("xenpod", CLASS)


@pytest.mark.parametrize("other", ["xenpod-fast", "gvisor", '""', "null", "[xenpod]", "{{ .Values.class }}"])
def test_another_class_stays(other: str) -> None:
    text = f"kind: Pod\nspec:   {{runtimeClassName: {other}}}\n"
    assert edited(text, plans.PODS, PLAN) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "kind: RuntimeClass\nmetadata: {name: xenpod}\nhandler: xenpod\nspec: {runtimeClassName: xenpod}\n",
        "kind: ConfigMap\ndata:\n  pod: |\n    kind: Pod\n    spec:\n      runtimeClassName: xenpod\n",
        "kind: Pod\nmetadata: {labels: {runtimeClassName: xenpod}}\nspec: {}\n",
        "kind: Pod\n# runtimeClassName: xenpod\nspec:\n",
        "- runtimeClassName: xenpod\n",
        "kind: [runtimeClassName]\n",
        "kind: List\nitems: runtimeClassName\n",
        "runtimeClassName\n",
    ],
    ids=["class", "text", "label", "comment", "list", "kind", "items", "word"],
)
def test_other_objects_stay(text: str) -> None:
    assert filled(text) == text


def test_json_stays_json() -> None:
    text = '{"kind": "Pod", "spec": {"runtimeClassName": "xenpod", "other": 1.50}}'
    assert json.loads(filled(text)) == {"kind": "Pod", "spec": {"runtimeClassName": CLASS, "other": 1.5}}
    flow = "{kind: Pod, spec: {runtimeClassName: xenpod}}\n"
    changed = flow.replace("xenpod", CLASS)
    assert filled(f"{flow}---\n{flow}") == f"{changed}--- {changed}"


def test_documents_without_a_class_are_not_read() -> None:
    text = f"a: [broken\n---\n{{{{ template }}}}\n--- # pod\n{POD}"
    assert filled(text).startswith("a: [broken\n---\n{{ template }}\n---") and CLASS in filled(text)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: b\n---\nkind: Pod\nspec:\n\truntimeClassName: xenpod\n", 5, "'\\t'"),
        ("{{- if .on }}\nkind: Pod\nspec: {runtimeClassName: xenpod}\n{{- end }}\n", 1, "helm template"),
        ("kind: Pod\nspec:\n  runtimeClassName: xenpod\n  runtimeClassName: kata\n", 4, "duplicate key"),
        ("kind: Pod\nspec: {runtimeClassName: *none}\n", 2, "undefined alias"),
        ("a: &a [*a]\nkind: Pod\nspec: {runtimeClassName: xenpod}\n", 1, "write out the alias *a"),
        ("kind: Pod\nspec: {runtimeClassName: &x xenpod}\nhandler: *x\n", 3, "write out the alias *x"),
        ("kind: Pod\nspec: &s {runtimeClassName: xenpod}\nother: {<<: *s}\n", 3, "write out the alias *s"),
        ("runtimeClassName: " + "[" * 1000 + "]" * 1000, 0, "nested too deeply"),
        ("runtimeClassName: [\n", 2, "not YAML"),
        ("kind: Pod\nspec: {runtimeClassName: xen\x01pod}\n", 0, "not YAML"),
        ("runtimeClassName: !!int x\n", 0, "not YAML"),
        ("kind: Pod\na: !b c\nspec: {runtimeClassName: xenpod}\n", 0, "too unusual"),
        ("%YAML 9.1 runtimeClassName\n---\na: b\n", 1, "not YAML"),
    ],
)  # fmt: skip
def test_the_error_of_an_unchangeable_document_has_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(ManifestError, match="(?s).*") as caught:
        filled(text)
    assert says in str(caught.value)
    assert caught.value.line == line


def test_an_alias_bomb_is_not_expanded() -> None:
    lines = ["a0: &a0 {kind: Pod, spec: {runtimeClassName: xenpod}}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 60)]
    text = "\n".join([*lines, "kind: List", "items: *a59", ""])
    assert filled(text) == text  # a list of lists is no list of objects
    with pytest.raises(ManifestError, match="write out the alias"):
        filled(text.replace("items: *a59", "items: [*a0, *a0]"))


NAMES = st.sampled_from(["a", "kind", "spec", "items", "template", "runtimeClassName"])
SCALARS = st.sampled_from(
    ["xenpod", "Pod", "List", "", "null", "no: yes", " x ", "#", "multi\nline\n", "- a"]
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@given(TREES, st.integers(2, 6), st.booleans())
def test_any_tree_keeps_its_other_values(tree: Any, indent: int, flow: bool) -> None:
    """Compares ruamel.yaml's reading of both texts."""
    document: Any = {"kind": "Pod", "spec": {"first": tree, "runtimeClassName": "xenpod", "last": tree}}
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.indent = flow, indent
    yaml.representer.ignore_aliases = lambda value: True
    stream = io.StringIO()
    yaml.dump(document, stream)
    document["spec"]["runtimeClassName"] = CLASS
    assert YAML(typ="safe", pure=True).load(filled(stream.getvalue())) == document


@given(st.text(alphabet="ab:-?&*!|>'\"[]{},#% \t\n\r\\\u2028\ufeff0", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert edited(text, re.compile(""), lambda root: []) == (text, [])
    except ManifestError as error:
        assert 0 <= error.line <= len(text.splitlines()) + 1


POD = "kind: Pod\nspec: {runtimeClassName: xenpod}\n"


def changed(path: Path, dry_run: bool = False) -> str:
    return folder.change(path, plans.PODS, PLAN, dry_run=dry_run)


def test_a_folder_has_its_manifests(tmp_path: Path) -> None:
    below, outside = tmp_path / "top" / "below", tmp_path / "outside"
    below.mkdir(parents=True)
    outside.mkdir()
    for path in (
        below / "b.yml",
        below / "a.json",
        below.parent / "c.yaml",
        below / "d.txt",
        outside / "e.yaml",
    ):
        path.write_text(POD)
    (below / "link.yaml").symlink_to(outside / "e.yaml")
    (below / "folder").symlink_to(outside)
    os.mkfifo(below / "pipe.yaml")
    found = folder.manifests(below.parent)
    assert [str(path.relative_to(below.parent)) for path in found] == [
        "below/a.json",
        "below/b.yml",
        "c.yaml",
    ]
    assert list(folder.manifests(below / "d.txt")) == [below / "d.txt"]


def test_a_file_keeps_its_mode_and_is_changed_once(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    path.chmod(0o640)
    assert changed(path) == f"{path}: Pod default/None: runtimeClassName: xenpod -> {CLASS}\n"
    assert path.read_text() == POD.replace("xenpod", CLASS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    before = path.stat()
    assert changed(path) == ""
    assert path.stat().st_mtime_ns == before.st_mtime_ns and path.stat().st_ino == before.st_ino
    assert [one.name for one in tmp_path.iterdir()] == ["pod.yaml"]


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [(b"runtimeClassName: [\n", 2, "not YAML"), (b"a: b\nc: \xe9\n", 2, "not UTF-8")],
)
def test_a_broken_file_stays(tmp_path: Path, content: bytes, line: int, says: str) -> None:
    path = tmp_path / "pod.yaml"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=says) as caught:
        changed(path)
    assert caught.value.line == line
    assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["pod.yaml"]


def test_a_file_stays_if_its_replacement_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        changed(path)
    assert path.read_text() == POD
    assert [one.name for one in tmp_path.iterdir()] == ["pod.yaml"]


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "huge.yaml").open("wb") as huge:
        huge.truncate(folder.FILE_BYTES + 1)
    with pytest.raises(ManifestError, match="larger than 8 MiB"):
        changed(tmp_path / "huge.yaml")


def test_a_named_link_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text(POD)
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    with pytest.raises(ManifestError, match="name its target"):
        changed(tmp_path / "link.yaml")
    assert (tmp_path / "link.yaml").is_symlink() and (tmp_path / "real.yaml").read_text() == POD


def test_a_dry_run_shows_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_bytes(POD.replace("\n", "\r\n").encode())
    difference = changed(path, dry_run=True)
    assert path.read_bytes() == POD.replace("\n", "\r\n").encode()
    assert "-spec: {runtimeClassName: xenpod}\r\n" in difference
    assert f"+spec: {{runtimeClassName: {CLASS}}}\r\n" in difference
