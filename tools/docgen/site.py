"""Hooks of mkdocs: pages outside of ``docs/`` become pages of the site, and links lead to these."""

from __future__ import annotations

import os
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docgen.links import local, replaced

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "LICENSE": "LICENSE",
    "deploy/README.md": "deploy/README.md",
    "zone/README.md": "zone/README.md",
}
"""Files of the tree outside of ``docs/``, and their names in the site."""

_INSIDE = {site: tree for tree, site in OUTSIDE.items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of ``docs/``."""
    for tree, site in OUTSIDE.items():
        files.append(File.generated(config, site, content=(ROOT / tree).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the tree into links between files of the site."""
    here = page.file.src_uri
    tree = _INSIDE.get(here, f"docs/{here}")

    def change(target: str) -> str:
        link = local(tree, target)
        if link is None:
            return target
        there = OUTSIDE.get(link.path, link.path.removeprefix("docs/"))
        path = "" if link.path == tree else os.path.relpath(there, os.path.dirname(here) or ".")
        return path + (f"#{link.anchor}" if link.anchor else "")

    return replaced(markdown, change)
