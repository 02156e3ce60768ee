"""An immutable snapshot of the store's images, replaced at every change."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemonkit.faults import Invalid, Missing
from images.bounds.digests import is_digest
from images.bounds.fields import Malformed
from images.globs import Globs
from images.registry import names
from images.registry.facts import ImageFacts, unpack_image
from images.store.db import FilesystemRow, ImageRow

log = logging.getLogger(__name__)
MIN_PREFIX = 4
_MAX_SHOWN = 5


@dataclass(frozen=True)
class StoredImage:
    """An image as the rest of the daemon sees it.

    id: digest of the configuration; size: bytes on disk, shared layers included; config: the part of the JSON
    document that xenpod uses, with Env, Cmd etc. under "config"; stack: the read-only filesystems, lowest
    first; pinned: exempt from garbage collection; damaged: a filesystem is damaged; lost: counts of files by
    lost attributes, see LossCount.named.
    """

    id: str
    repo_tags: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size: int
    config: dict[str, Any]
    stack: tuple[Path, ...]
    fs_type: str
    chain_id: str
    manifest_digest: str
    pulled_at: int
    pinned: bool = False
    damaged: bool = False
    lost: Mapping[str, int] = field(default_factory=dict)

    @property
    def run(self) -> dict[str, Any]:
        """The run settings of the configuration (Env, Cmd, Entrypoint, User, ...)."""
        run: dict[str, Any] = self.config.get("config") or {}
        return run


class Catalogue:
    """images, rows, facts: by id, removed images included; filesystems: by chain id.

    facts lacks images with unread documents, see ImageManager.start().
    """

    def __init__(
        self,
        rows: Sequence[ImageRow],
        named: Sequence[tuple[str, str]],
        filesystems: Sequence[FilesystemRow],
        fs_path: Callable[[str], Path],
        before: Catalogue | None,
        pins: Globs,
    ) -> None:
        """before: the last snapshot; unchanged facts are reused, not unpacked again."""
        self.rows = {row.id: row for row in sorted(rows, key=lambda row: row.id)}
        self.filesystems = {row.chain_id: row for row in filesystems}
        self._names = dict(named)
        self._fs_path = fs_path
        names_of: dict[str, list[str]] = {}
        for name, image_id in named:
            names_of.setdefault(image_id, []).append(name)
        self.images: dict[str, StoredImage] = {}
        self.facts: dict[str, ImageFacts] = {}
        for row in self.rows.values():
            known = before is not None and row.id in before.rows and before.rows[row.id].facts == row.facts
            facts = before.facts.get(row.id) if before is not None and known else _facts(row)
            if facts is not None:
                self.facts[row.id] = facts
            config = {} if facts is None else facts.config.document
            stack = [(fs_path(one.chain_id), one) for one in self.stack(row.chain_id)]
            self.images[row.id] = _image(row, names_of.get(row.id, []), stack, config, pins)

    def stack(self, chain_id: str) -> list[FilesystemRow]:
        """The filesystems of a stack, lowest first, by the name of the topmost."""
        found: list[FilesystemRow] = []
        while (row := self.filesystems.get(chain_id)) is not None:
            found.append(row)
            chain_id = row.below
        return found[::-1]

    def broken(self) -> set[str]:
        """Filesystems with missing files or files of a wrong size, except those marked damaged."""
        return {
            chain_id
            for chain_id, row in self.filesystems.items()
            if not row.damaged
            and not ((path := self._fs_path(chain_id)).is_file() and path.stat().st_size == row.bytes)
        }

    def listed(self) -> list[StoredImage]:
        """All images not marked removed, sorted by id."""
        return [image for image in self.images.values() if self._is_here(image.id)]

    def find(self, name_or_id: str) -> StoredImage | None:
        """An image not marked removed, by name, id, or unique prefix of an id; raises Invalid."""
        text = name_or_id
        image_id: str | None = text if ":" in text else f"sha256:{text}"
        if image_id not in self.rows:
            image_id = None
            if not is_digest(text) and not _is_hex(text, 64, 64):
                image_id = self._by_name(text) or self._by_prefix(text)
        return None if image_id is None or not self._is_here(image_id) else self.images[image_id]

    def _is_here(self, image_id: str) -> bool:
        """Whether an image is listed: not removed, and with known facts, for instance the user name."""
        return not self.rows[image_id].removed and image_id in self.facts

    def resolve(self, text: str) -> StoredImage:
        """Like find(), also by a prefix of a name's digest; raises Missing, and Invalid for several."""
        name, at, short = text.partition("@sha256:")
        if at and _is_hex(short, MIN_PREFIX, 63):
            beginning = f"{names.parse(name).name}{at}{short}"
            named = {image_id for known, image_id in self._names.items() if known.startswith(beginning)}
            fitting = set(filter(self._is_here, named))
        else:
            found = self.find(text)
            fitting = {found.id} if found is not None else set(self._beginning(text.removeprefix("sha256:")))
        if not fitting:
            raise Missing("find image", text[:300], "no such image", "pull it first")
        if len(fitting) > 1:
            shown = ", ".join(_described(self.images[image_id]) for image_id in sorted(fitting)[:_MAX_SHOWN])
            more = ", ..." if len(fitting) > _MAX_SHOWN else ""
            cause = f"it is the prefix of {len(fitting)} images: {shown}{more}"
            raise Invalid("find image", text[:300], cause, "give more of it")
        return self.images[fitting.pop()]

    def _by_name(self, text: str) -> str | None:
        try:
            return self._names.get(str(names.parse(text)))
        except Invalid:
            if _is_hex(text, MIN_PREFIX, 64):
                return None
            raise

    def _by_prefix(self, text: str) -> str | None:
        fitting = self._beginning(text)
        return fitting[0] if len(fitting) == 1 else None

    def _beginning(self, text: str) -> list[str]:
        """The ids with this prefix, removed images excluded."""
        if not _is_hex(text, MIN_PREFIX, 64):
            return []
        listed = filter(self._is_here, self.rows)
        return [image_id for image_id in listed if image_id.partition(":")[2].startswith(text)]


def _image(
    row: ImageRow,
    mine: Sequence[str],
    stack: Sequence[tuple[Path, FilesystemRow]],
    config: dict[str, Any],
    pins: Globs,
) -> StoredImage:
    documents = len(row.manifest) + len(row.config)
    return StoredImage(
        row.id,
        tuple(name for name in mine if "@" not in name),
        tuple(name for name in mine if "@" in name),
        sum(one.bytes for _, one in stack) + documents + sum(size for _, size in row.layers),
        config,
        tuple(path for path, _ in stack),
        stack[-1][1].type,
        row.chain_id,
        row.manifest_digest,
        row.pulled_at,
        bool(pins.matching(mine)),
        any(one.damaged for _, one in stack),
        dict(sum((Counter(one.lost or {}) for _, one in stack), Counter())),
    )


def _facts(row: ImageRow) -> ImageFacts | None:
    """The stored facts of an image's documents; None: the documents must be read."""
    try:
        return unpack_image(row.facts) if row.facts else None
    except Malformed as error:
        log.warning("the facts of image %s in the index are damaged: %s", row.id, error)
        return None


def _described(image: StoredImage) -> str:
    name = next(iter((*image.repo_tags, *image.repo_digests)), "")
    return f"{image.id} {name}".rstrip()


def _is_hex(text: str, least: int, most: int) -> bool:
    return least <= len(text) <= most and not text.strip("0123456789abcdef")
