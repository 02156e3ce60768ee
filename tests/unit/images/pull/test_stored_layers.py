"""Kept layers that another pull has found damaged in the meantime."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from images.bounds.cancel import CancelToken
from images.bounds.limits import ImageLimits
from images.image_errors import Damaged
from images.pull.stored_layers import check_kept, read_kept
from images.registry.manifests import Descriptor
from images.store.image_files import StoreFiles
from images.worker.workers import LayerWorkers
from tests.support.images.images import digest

DATA = b"a layer's bytes"


class _Meanwhile(CancelToken):
    """Removes the file during its read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def check(self) -> None:
        self._path.unlink()


def test_a_missing_layer_is_fetched_again_like_a_damaged_layer(tmp_path: Path) -> None:
    with pytest.raises(Damaged):
        check_kept(digest(DATA), tmp_path / "gone", CancelToken())


def test_a_damaged_layer_may_be_removed_by_two(tmp_path: Path) -> None:
    path = tmp_path / "layer"
    path.write_bytes(b"other bytes")
    with pytest.raises(Damaged):
        check_kept(digest(DATA), path, _Meanwhile(path))
    files = StoreFiles(tmp_path / "images")
    files.clear_ingest()
    kept = files.blob_path(digest(DATA))
    kept.parent.mkdir()
    kept.write_bytes(b"other bytes....")
    layer = Descriptor("", digest(DATA), len(DATA))
    with closing(LayerWorkers(ImageLimits())) as workers:
        assert read_kept(layer, digest(DATA), files, workers, True, _Meanwhile(kept)) is None
    files.close()
