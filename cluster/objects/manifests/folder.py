"""Finds the manifests in a folder, and changes them in place or shows the differences."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.objects.manifests.yamltree import ManifestError

FILE_BYTES = 8 << 20
"""Size of the largest file that is read, which takes half a minute, or three times that at worst."""

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_NO_NEWLINE = "\\ No newline at end of file\n"
_SUFFIXES = frozenset({".yaml", ".yml", ".json"})


@dataclass(frozen=True)
class Edit:
    """Replaces the characters from ``start`` to before ``end``.  ``line`` and ``what`` are for people."""

    start: int
    end: int
    text: str
    line: int
    what: str
    depth: int = 0
    """Order of edits at the same place: deeper ones come first, since they belong to what ends there."""


@dataclass
class FolderChanges:
    """What was done to a folder, as lines for people."""

    changed: list[str] = field(default_factory=list)
    """``path:line: what`` for each change."""
    errors: list[str] = field(default_factory=list)
    """``path:line: why`` for each file that could not be changed."""
    notes: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    """Unified diffs of a dry run."""


Planner = Callable[[str], Sequence[Edit]]
"""From a text to the edits that it needs.  ManifestError: it cannot be changed."""


def change(folder: Path, plan: Planner, *, dry_run: bool) -> FolderChanges:
    """Change every manifest below the folder (or the single file) as ``plan`` says.

    A file that cannot be read or changed is reported and left alone; the others are changed.
    """
    outcome = FolderChanges()
    for path in _manifests(folder, outcome):
        try:
            _change_file(path, plan, outcome, dry_run=dry_run)
        except ManifestError as error:
            outcome.errors.append(
                f"{path}:{error.line}: {error.text}" if error.line else f"{path}: {error.text}"
            )
        except OSError as error:
            outcome.errors.append(f"{path}: {error.strerror or error}")
    return outcome


def applied(text: str, edits: Sequence[Edit]) -> str:
    """Apply the edits, which do not overlap, to the text."""
    parts, at = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, -edit.depth)):
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


def _manifests(folder: Path, outcome: FolderChanges) -> Iterator[Path]:
    """The manifests, sorted by name.

    Symbolic links are not followed: what they lead to inside the folder is found anyway.
    """
    if folder.is_file():
        if folder.is_symlink():
            outcome.errors.append(f"{folder}: a symbolic link: name what it leads to")
        else:
            yield folder
        return
    if not folder.is_dir():
        outcome.errors.append(f"{folder}: no such folder")
        return

    def unreadable(error: OSError) -> None:
        outcome.errors.append(f"{error.filename}: {error.strerror or error}")

    top = folder.resolve()
    for at, folders, names in os.walk(folder, onerror=unreadable):
        folders.sort()
        for name in sorted([*names, *(one for one in folders if (Path(at) / one).is_symlink())]):
            path = Path(at) / name
            if not path.is_symlink():
                if path.suffix in _SUFFIXES:
                    yield path
            elif (path.suffix in _SUFFIXES or path.is_dir()) and not path.resolve().is_relative_to(top):
                outcome.notes.append(f"{path}: a symbolic link out of the folder, not followed")


def _change_file(path: Path, plan: Planner, outcome: FolderChanges, *, dry_run: bool) -> None:
    before = _read(path)
    if before is None:
        return
    content, status = before
    text = _decoded(content)
    edits = plan(text)
    if not edits:
        return
    changed = applied(text, edits)
    _verify(plan, changed, edits)
    if dry_run:
        outcome.differences.append(_difference(path, text, changed))
    else:
        _replace(path, changed.encode(), status)
    outcome.changed += [
        f"{path}:{edit.line}: {edit.what}" for edit in sorted(edits, key=lambda one: one.line)
    ]


def _verify(plan: Planner, changed: str, edits: Sequence[Edit]) -> None:
    """Check that the result is YAML that needs no further change; ManifestError otherwise."""
    try:
        missed = plan(changed)
    except ManifestError as error:
        raise ManifestError(edits[0].line, f"its form is too unusual to be changed ({error.text})") from None
    if missed:
        raise ManifestError(missed[0].line, "its form is too unusual to be changed")


def _read(path: Path) -> tuple[bytes, os.stat_result] | None:
    """The content and status of a file; None if it is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        content = file.read(FILE_BYTES + 1)
    if len(content) > FILE_BYTES:
        raise ManifestError(0, f"larger than {FILE_BYTES >> 20} MiB: split it")
    return content, status


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ManifestError(line, f"not UTF-8: byte 0x{content[error.start]:02x}") from None


def _difference(path: Path, before: str, after: str) -> str:
    """A diff like that of ``diff -u``.  Lines end at line feeds only: a carriage return is content."""
    old, new = (_LINE.findall(text) for text in (before, after))
    name = str(path).lstrip("/")
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines)


def _replace(path: Path, content: bytes, status: os.stat_result) -> None:
    """Replace a file atomically; its mode and owner stay."""
    new = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if (own := os.fstat(descriptor)) and (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
                os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
            os.fsync(descriptor)
        now = os.lstat(path)
        if (now.st_ino, now.st_mtime_ns, now.st_size) != (status.st_ino, status.st_mtime_ns, status.st_size):
            raise ManifestError(0, "somebody else has changed it meanwhile: try again")
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
