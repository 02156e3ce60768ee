"""Reads the index of the store."""

from __future__ import annotations

from collections.abc import Sequence

from daemonkit.faults import Missing
from images.registry.facts import ImageFacts
from images.store.catalogue import Catalogue, StoredImage
from images.store.db import FilesystemRow, ImageDb, ImageRow


class StoreReader:
    """Looks things up in the current snapshot, without waiting for a change under way."""

    def __init__(self, db: ImageDb) -> None:
        self._db = db
        self._catalogue: Catalogue | None = None

    def images(self) -> list[StoredImage]:
        """All images not marked removed, sorted by id."""
        return self._now.listed()

    def resolve(self, name_or_id: str) -> StoredImage:
        """The image by name, id, or unique beginning of an id or of a name's digest.

        Raises Missing and Invalid.
        """
        return self._now.resolve(name_or_id)

    def find(self, name_or_id: str) -> StoredImage | None:
        """Like resolve(), but None instead of Missing."""
        return self._now.find(name_or_id)

    def get(self, image_id: str) -> StoredImage:
        """The image by full id, including images removed while in use."""
        image = self._now.images.get(image_id)
        if image is None:
            raise Missing("find image", image_id[:100], "no such image")
        return image

    def read_file(self, image: StoredImage, path: str, limit: int) -> bytes | None:
        """/etc/passwd or /etc/group of the image (untrusted); None: no such file, or larger than limit."""
        data = self._db.account_file(self.stack(image.id), path)
        return data if data is not None and len(data) <= limit else None

    def manifest(self, image: StoredImage) -> bytes:
        """The manifest of the image, byte for byte as pulled."""
        return self._now.rows[image.id].manifest

    def stored(self, image: StoredImage) -> tuple[ImageRow, list[FilesystemRow]]:
        """The rows of an image and of its filesystems, lowest first; raises Missing."""
        now = self._now
        row = now.rows.get(image.id)
        if row is None:
            raise Missing("find image", image.id, "it was removed")
        return row, now.stack(row.chain_id)

    def facts(self, image: StoredImage) -> ImageFacts:
        """The facts of an image's manifest and configuration; raises Missing."""
        found = self._now.facts.get(image.id)
        if found is None:
            raise Missing("find image", image.id, "it was removed")
        return found

    def unread(self) -> list[ImageRow]:
        """The images with unread documents, removed images included."""
        return [row for row in self._now.rows.values() if row.id not in self._now.facts]

    def stack(self, image_id: str) -> list[str]:
        """The names of an image's filesystems, lowest first; empty if the image is gone."""
        now = self._now
        row = now.rows.get(image_id)
        return [] if row is None else [one.chain_id for one in now.stack(row.chain_id)]

    def contents(self, chain_ids: Sequence[str]) -> set[str]:
        """The known ContentId.value of each filesystem."""
        return self._db.contents(chain_ids)

    def row(self, image_id: str) -> ImageRow | None:
        """The row of an image; None: no such image."""
        return self._now.rows.get(image_id)

    def has(self, image_id: str) -> bool:
        """Whether the store has an image, including images removed while in use."""
        return image_id in self._now.rows

    @property
    def _now(self) -> Catalogue:
        assert self._catalogue is not None
        return self._catalogue
