"""``--fill``: only the name of the class changes, wherever pods are, and broken files do no harm."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cluster.objects.manifests import folder, yamltree
from cluster.objects.manifests.fill import fill
from cluster.objects.manifests.yamltree import ManifestError

CLASS = "xenpod-metal"

EVERY_KIND = """\
# A comment at the top.
kind: Pod
apiVersion: v1
spec: {runtimeClassName: xenpod, containers: []}   # flow
---
apiVersion: v1
kind: List
items:
- kind: Deployment
  spec:
    template:
      spec:
        runtimeClassName:   "xenpod"      # quoted
- kind: StatefulSet
  spec: {template: {spec: {"runtimeClassName": 'xenpod'}}}
- kind: DaemonSet
  spec:
        template:
            spec:
                runtimeClassName: &class xenpod
- kind: ReplicaSet
  spec:
    template:
      spec:
        runtimeClassName: !!str xenpod
- kind: Job
  spec:
    template:
      spec:
        ? runtimeClassName
        : xenpod
- kind: CronJob
  spec: {jobTemplate: {spec: {template: {spec: {runtimeClassName: xenpod}}}}}
- kind: PodTemplate
  template: {spec: {runtimeClassName: xenpod}}
---
kind: PodList
items:
- spec:
    runtimeClassName: xenpod
...
"""


def filled(text: str) -> str:
    return folder.applied(text, fill(text, CLASS))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "marked"])
def test_nothing_but_the_name_changes(start: str, newline: str) -> None:
    text = start + EVERY_KIND.replace("\n", newline)
    expected = text
    for quote in ("", '"', "'"):
        for before in (
            "runtimeClassName: ",
            "runtimeClassName:   ",
            "&class ",
            "!!str ",
            ": ",
            '"runtimeClassName": ',
        ):
            for after in (newline, "}", ",", "   "):
                old = f"{before}{quote}xenpod{quote}{after}"
                expected = expected.replace(old, f"{before}{quote}{CLASS}{quote}{after}")
    assert expected.count(CLASS) == 9
    assert filled(text) == expected
    assert fill(expected, CLASS) == []


@pytest.mark.parametrize("other", ["xenpod-fast", "gvisor", '""', "null", "[xenpod]", "{{ .Values.class }}"])
def test_another_class_stays(other: str) -> None:
    assert fill(f"kind: Pod\nspec: {{runtimeClassName: {other}}}\n", CLASS) == []


@pytest.mark.parametrize(
    "text",
    [
        "kind: RuntimeClass\nmetadata: {name: xenpod}\nhandler: xenpod\nspec: {runtimeClassName: xenpod}\n",
        "kind: ConfigMap\ndata:\n  pod: |\n    kind: Pod\n    spec:\n      runtimeClassName: xenpod\n",
        "kind: Pod\nmetadata: {labels: {runtimeClassName: xenpod}}\nspec: {}\n",
        "kind: Pod\n# runtimeClassName: xenpod\nspec:\n",
        "- runtimeClassName: xenpod\n",
        "runtimeClassName\n",
    ],
    ids=["class", "text", "label", "comment", "list", "word"],
)
def test_what_is_no_pod_stays(text: str) -> None:
    assert fill(text, CLASS) == []


def test_aliases_follow_the_class_that_they_name() -> None:
    text = (
        "kind: List\nitems:\n"
        "- {kind: Pod, spec: {runtimeClassName: &class xenpod}}\n"
        "- {kind: Pod, spec: {runtimeClassName: *class}}\n"
    )
    assert filled(text) == text.replace("&class xenpod", f"&class {CLASS}")


def test_an_alias_of_something_else_is_replaced() -> None:
    text = "kind: Pod\nmetadata: {name: &name xenpod}\nspec: {runtimeClassName: *name}\n"
    assert filled(text) == text.replace("*name", CLASS)


def test_a_merged_class_changes_where_it_is() -> None:
    text = (
        "kind: List\ncommon: &common\n  runtimeClassName: xenpod\nitems:\n"
        "- kind: Pod\n  spec:\n    <<: *common\n"
        "- kind: Pod\n  spec: {<<: [*common], runtimeClassName: gvisor}\n"
    )
    assert filled(text) == text.replace("runtimeClassName: xenpod", f"runtimeClassName: {CLASS}")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("kind: Pod\nspec:\n\truntimeClassName: xenpod\n", 3, "'\\t'"),
        ("{{- if .on }}\nkind: Pod\nspec: {runtimeClassName: xenpod}\n{{- end }}\n", 1, "helm template"),
        ("kind: Pod\nspec:\n  runtimeClassName: xenpod\n  runtimeClassName: kata\n", 4, "twice"),
        ("kind: Pod\nspec: {runtimeClassName: *none}\n", 2, "*none has no anchor"),
        ("a: &a [*a]\nkind: Pod\nspec: {runtimeClassName: xenpod}\n", 1, "within"),
        ("runtimeClassName: " + "[" * 101 + "]" * 101, 1, "nested"),
        ("runtimeClassName: [\n", 2, "not YAML"),
        ("kind: Pod\nspec: {runtimeClassName: xen\x01pod}\n", 2, "not allowed"),
        ('kind: Pod\nspec: {runtimeClassName: "xen\\x70od"}\n', 2, "escapes"),
        ("kind: Pod\nspec:\n  runtimeClassName: |-\n    xenpod\n", 3, "block"),
        ("kind: Pod\nspec: {runtimeClassName: &x xenpod}\nhandler: *x\n", 2, "write it out"),
        ("%YAML 9999999999999999.1\n---\nruntimeClassName: x\n", 0, "YAML"),
    ],
)  # fmt: skip
def test_what_cannot_be_filled_says_where(text: str, line: int, says: str) -> None:
    with pytest.raises(ManifestError, match="(?s).*") as caught:
        fill(text, CLASS)
    assert says in caught.value.text
    assert caught.value.line == line or line == 0


def test_an_alias_bomb_is_not_expanded() -> None:
    lines = ["a0: &a0 {kind: Pod, spec: {runtimeClassName: xenpod}}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 60)]
    text = "\n".join([*lines, "kind: List", "items: *a59", ""])
    assert fill(text, CLASS) == []  # a list of lists is no list of objects
    text = text.replace("items: *a59", "items: [*a0, *a0]")
    assert filled(text) == text.replace("runtimeClassName: xenpod", f"runtimeClassName: {CLASS}")


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
    text = _dumped(yaml, document)
    document["spec"]["runtimeClassName"] = CLASS
    after = filled(text)
    assert YAML(typ="safe", pure=True).load(after) == document
    assert after.replace(CLASS, "xenpod") == text


def _dumped(yaml: YAML, value: object) -> str:
    import io

    stream = io.StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()


@given(st.text(alphabet="ab:-?&*!|>'\"[]{},#% \t\n\r\\\u2028\ufeff0", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        for document in yamltree.documents(text):
            assert 0 <= document.root.start <= document.root.end <= len(text)
    except ManifestError as error:
        assert 0 <= error.line <= len(text.splitlines()) + 1


POD = "kind: Pod\nspec: {runtimeClassName: xenpod}\n"


def changed(top: Path, **options: bool) -> folder.FolderChanges:
    return folder.change(top, lambda text: fill(text, CLASS), dry_run=options.get("dry_run", False))


def test_a_folder_is_filled_and_a_broken_file_is_named(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    good, broken, other = below / "good.yaml", below / "broken.yml", tmp_path / "notes.txt"
    good.write_text(POD)
    good.chmod(0o640)
    broken.write_text("runtimeClassName: [\n")
    (below / "latin.yaml").write_bytes(b"a: b\nc: \xe9\n")
    with (below / "huge.yaml").open("wb") as huge:
        huge.truncate(folder.FILE_BYTES + 1)
    (below / "pod.json").write_text('{"kind": "Pod", "spec": {"runtimeClassName": "xenpod"}}')
    os.mkfifo(below / "pipe.yaml")
    other.write_text(POD)
    outcome = changed(tmp_path)
    assert [line.partition(" ")[0] for line in outcome.changed] == [f"{good}:2:", f"{below}/pod.json:1:"]
    assert good.read_text() == POD.replace("xenpod", CLASS)
    assert stat.S_IMODE(good.stat().st_mode) == 0o640
    assert other.read_text() == POD
    assert [error.partition(": ")[0] for error in outcome.errors] == [
        f"{broken}:2", f"{below}/huge.yaml", f"{below}/latin.yaml:2"
    ]  # fmt: skip
    assert sorted(path.name for path in below.iterdir() if path.name.startswith(".")) == []
    kept = {path: path.stat().st_mtime_ns for path in below.iterdir()}
    again = changed(tmp_path)
    assert again.changed == [] and kept == {path: path.stat().st_mtime_ns for path in below.iterdir()}


def test_links_do_not_lead_out(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "pod.yaml").write_text(POD)
    (inside / "own.yaml").write_text(POD)
    (inside / "link.yaml").symlink_to(outside / "pod.yaml")
    (inside / "same.yaml").symlink_to("own.yaml")
    (inside / "folder").symlink_to(outside)
    outcome = changed(inside)
    assert (outside / "pod.yaml").read_text() == POD
    assert [note.partition(": ")[0] for note in outcome.notes] == [f"{inside}/folder", f"{inside}/link.yaml"]
    assert len(outcome.changed) == 1 and (inside / "same.yaml").is_symlink()


def test_a_link_that_is_named_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text(POD)
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    outcome = changed(tmp_path / "link.yaml")
    assert outcome.errors == [f"{tmp_path}/link.yaml: a symbolic link: name what it leads to"]
    assert (tmp_path / "link.yaml").is_symlink() and (tmp_path / "real.yaml").read_text() == POD


def test_a_dry_run_shows_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_bytes(POD.replace("\n", "\r\n").encode())
    outcome = changed(tmp_path, dry_run=True)
    assert (tmp_path / "pod.yaml").read_bytes() == POD.replace("\n", "\r\n").encode()
    (difference,) = outcome.differences
    assert "-spec: {runtimeClassName: xenpod}\r\n" in difference
    assert f"+spec: {{runtimeClassName: {CLASS}}}\r\n" in difference


def test_a_file_that_changes_meanwhile_is_left(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)

    def plan(text: str) -> Any:
        path.write_text("# newer\n" + POD)
        return fill(text, CLASS)

    outcome = folder.change(tmp_path, plan, dry_run=False)
    assert path.read_text() == "# newer\n" + POD and "somebody else" in outcome.errors[0]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    assert changed(tmp_path / "none").errors == [f"{tmp_path}/none: no such folder"]
