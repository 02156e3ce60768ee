"""``protect generate --fill`` and ``--critical``: output and exit statuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from protectctl.__main__ import main

TWO = '[platforms.metal]\nhandlers = ["fast", "xenpod"]\n[platforms.cloud]\n'
POD = "kind: Pod\nspec:\n  runtimeClassName: xenpod # any platform\n"
ADDON = "kind: DaemonSet\nmetadata: {name: agent}\nspec:\n  template:\n    spec:\n      containers: []\n"


@pytest.fixture
def platforms(tmp_path: Path) -> list[str]:
    path = tmp_path / "platforms.toml"
    path.write_text(TWO)
    return ["--platforms", str(path)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "manifests"
    made.mkdir()
    (made / "pod.yaml").write_text(POD)
    (made / "addon.yaml").write_text(ADDON)
    return made


def generate(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        status = main(["generate", *map(str, arguments)])
    except SystemExit as end:  # of argparse
        assert isinstance(end.code, int)
        status = end.code
    said = capsys.readouterr()
    return status, said.out, said.err


def test_pods_get_the_class_of_the_platform(
    capsys: pytest.CaptureFixture[str], platforms: list[str], folder: Path
) -> None:
    fill = ("--fill", folder, *platforms, "--platform", "metal")
    where = f"{folder}/pod.yaml: Pod default/None: runtimeClassName: xenpod -> fast-metal\n"
    assert generate(capsys, *fill) == (0, where, "")
    assert (folder / "pod.yaml").read_text() == POD.replace("xenpod", "fast-metal")
    assert generate(capsys, *fill) == (0, "", "")
    assert generate(capsys, "--fill", folder, *platforms, "--platform", "cloud") == (0, "", "")
    assert (folder / "addon.yaml").read_text() == ADDON


def test_without_a_platform_none_is_guessed(
    capsys: pytest.CaptureFixture[str], platforms: list[str], folder: Path
) -> None:
    status, _, said = generate(capsys, "--fill", folder, *platforms)
    assert status == 1 and "name one with --platform (metal, cloud)" in said
    status, _, said = generate(capsys, "--fill", folder, *platforms, "--platform", "none")
    assert status == 1 and "has no platform none" in said
    assert (folder / "pod.yaml").read_text() == POD


def test_a_node_of_the_only_kind_needs_no_filling(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, folder: Path
) -> None:
    config = tmp_path / "cri.toml"
    config.write_text("")
    status, _, said = generate(capsys, "--fill", folder, "--config", config)
    assert status == 0 and "nothing to fill" in said
    assert (folder / "pod.yaml").read_text() == POD


def test_a_broken_file_is_named_and_the_others_are_changed(
    capsys: pytest.CaptureFixture[str], platforms: list[str], folder: Path
) -> None:
    (folder / "helm\x1b.yaml").write_text("{{ if .on }}\nruntimeClassName: xenpod\n{{ end }}\n")
    status, out, said = generate(capsys, "--fill", folder, *platforms, "--platform", "metal")
    assert status == 1
    assert "pod.yaml: Pod" in out
    assert f"protect: {folder}/helm\\x1b.yaml:2: not YAML: " in said and "helm template" in said


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "no-newline-at-the-end"])
def test_a_dry_run_can_be_applied_with_patch(
    capsys: pytest.CaptureFixture[str], platforms: list[str], folder: Path, cut: bool
) -> None:
    written = POD.replace("\n", "\r\n").rstrip("\r\n" if cut else "")
    (folder / "pod.yaml").write_bytes(written.encode())
    fill = ("--fill", folder, *platforms, "--platform", "metal")
    status, difference, _ = generate(capsys, *fill, "--dry-run")
    assert status == 0 and (folder / "pod.yaml").read_bytes() == written.encode()
    stripped = str(len(folder.parts))
    command = ["git", "apply", "--unsafe-paths", f"-p{stripped}", "-"]
    subprocess.run(command, cwd=folder, input=difference.encode(), check=True)
    filled = written.replace("xenpod", "fast-metal").rstrip("\r\n") + "\r\n"
    assert (folder / "pod.yaml").read_bytes() == filled.encode()


def test_add_ons_are_made_critical(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, out, said = generate(capsys, "--critical", folder, "--addon-label", "example.com/addons")
    assert (status, said) == (0, "")
    assert (
        "DaemonSet default/agent: tolerates CriticalAddonsOnly" in out and "prefers nodes for add-ons" in out
    )
    changed = (folder / "addon.yaml").read_text()
    assert "- key: CriticalAddonsOnly\n" in changed and "key: example.com/addons\n" in changed
    assert generate(capsys, "--critical", folder, "--addon-label", "example.com/addons") == (0, "", "")
    assert (folder / "pod.yaml").read_text() == POD


def test_a_missing_add_on_is_an_error(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    named = ("--critical", folder, "--addon", "kube-system/none")
    status, out, said = generate(capsys, *named, "--addon", "default/agent")
    assert status == 1 and "DaemonSet default/agent" in out
    assert said == f"protect: {folder}: no manifest has the add-on kube-system/none\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--fill", ".", "--critical", "."), "not allowed with"),
        (("--fill", ".", "classes"), "make nothing else"),
        (("--critical", ".", "--to", "x"), "no --to"),
        (("--dry-run",), "--dry-run is for"),
        (("--addon", "a/b"), "for --critical"),
        (("--fill", ".", "--addon-label", "x"), "for --critical"),
        (("--critical", ".", "--addon-label", "a b"), "not a label key"),
    ],
)
def test_contradicting_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    status, _, said = generate(capsys, *arguments)
    assert status == 2 and says in said
