"""Every link of the documentation has a target, and the pages make one site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.docgen import links

ROOT = Path(__file__).resolve().parents[3]


def pages() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(name for name in set(done.stdout.split()) if (ROOT / name).exists())


def broken(page: str, text: str) -> list[str]:
    """Missing targets of links."""
    found = []
    for target in links.targets(text):
        link = links.local(page, target)
        if link is None:
            continue
        path = ROOT / link.path
        if not path.exists() or (
            link.anchor and link.anchor not in links.anchors(text if link.path == page else path.read_text())
        ):
            found.append(target)
    return found


@pytest.mark.parametrize("page", pages())
def test_every_link_has_a_target(page: str) -> None:
    assert broken(page, (ROOT / page).read_text()) == []


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("[a](gone.md)", ["gone.md"]),
        ("# Here\n\n[a](#here) [b](#there)", ["#there"]),
        ("[a](../README.md#try-it) [b](../README.md#try-them)", ["../README.md#try-them"]),
        ("![a](gone.svg)", ["gone.svg"]),
        ("`[a](gone.md)`\n\n```\n[a](gone.md)\n```\n[a](https://example.org/gone.md)", []),
    ],
)
def test_a_broken_link_is_found(text: str, targets: list[str]) -> None:
    assert broken("docs/cri.md", text) == targets


def test_anchors_follow_github() -> None:
    text = "# What's `new`?\n## A & B\n## A & B\n```\n# no heading\n```\n### [Link](x.md) last\n"
    assert links.anchors(text) == {"whats-new", "a--b", "a--b-1", "link-last"}


def site(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    return subprocess.run(
        [*command, "--site-dir", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = site(tmp_path / "site", ROOT / "mkdocs.yml")
    assert done.returncode == 0, done.stderr
    front = (tmp_path / "site" / "index.html").read_text()
    assert 'href="install/"' in front and 'href="CONTRIBUTING/"' in front
    contributing = (tmp_path / "site" / "CONTRIBUTING" / "index.html").read_text()
    assert 'href="../channel/"' in contributing, "links to docs/ lead to pages of the site"


def test_a_page_outside_the_menu_fails_the_build(tmp_path: Path) -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    kept = "\n".join(line for line in config.splitlines() if "scale.md" not in line)
    here = kept.replace("docs_dir: ", f"docs_dir: {ROOT}/").replace("hooks: [", f"hooks: [{ROOT}/")
    (tmp_path / "mkdocs.yml").write_text(here)
    done = site(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0 and "cluster/scale.md" in done.stderr


def test_pictures_are_small_and_load_nothing() -> None:
    pictures = list((ROOT / "docs").rglob("*.svg"))
    assert pictures
    for picture in pictures:
        text = picture.read_text()
        assert len(text) <= 100 * 1024
        assert re.findall(r"url\((?!#)|href=|<script|@import|@font-face", text) == [], picture
