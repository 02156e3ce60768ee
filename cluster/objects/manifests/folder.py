"""Finds manifests in a folder, and changes them or makes a difference."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from cluster.objects.manifests.document import ManifestError, Planner, edited

FILE_BYTES = 8 << 20
"""Size limit of a file, in bytes."""

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_NO_NEWLINE = "\\ No newline at end of file\n"
_SUFFIXES = frozenset({".yaml", ".yml", ".json"})


def manifests(folder: Path) -> Iterator[Path]:
    """The manifests below a folder, sorted, or the single file.  Symbolic links are not followed."""
    if not folder.is_dir():
        yield folder
    for path in sorted(folder.rglob("*")):
        if path.suffix in _SUFFIXES and path.is_file() and not path.is_symlink():
            yield path


def change(path: Path, words: re.Pattern[str], plan: Planner, *, dry_run: bool) -> str:
    """Change a manifest; returns a line for each change, or the difference for a dry run.

    ManifestError, OSError: the file cannot be read or changed, and stays as it is.
    """
    text = _read_manifest(path)
    changed, changes = edited(text, words, plan)
    if changes and dry_run:
        return _difference(path, text, changed)
    if changes:
        _replace(path, changed.encode())
    return "".join(f"{path}: {one}\n" for one in changes)


def _read_manifest(path: Path) -> str:
    if path.is_symlink():
        raise ManifestError("a symbolic link: name its target")
    with path.open("rb") as file:
        content = file.read(FILE_BYTES + 1)
    if len(content) > FILE_BYTES:
        raise ManifestError(f"larger than {FILE_BYTES >> 20} MiB: split it")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ManifestError("not UTF-8", content.count(b"\n", 0, error.start) + 1) from None


def _difference(path: Path, before: str, after: str) -> str:
    """A diff like that of ``diff -u``.  Lines end at line feeds only: a carriage return is content."""
    name = str(path).lstrip("/")
    lines = difflib.unified_diff(_LINE.findall(before), _LINE.findall(after), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically; mode and owner stay."""
    new = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}")
    try:
        with new.open("xb") as file:
            status = path.stat()
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
            shutil.copymode(path, new)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
