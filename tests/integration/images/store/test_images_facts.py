"""Images whose documents were stored by a version without facts of images."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from images.image_settings import ImageSettings
from tests.support.images.image_manager import running
from tests.support.images.images import Layer, build, write_layout

pytestmark = pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
IMAGE = build([Layer().file("f", b"x").tar()], {"User": "1234", "Env": ["A=b"]})


@pytest.mark.parametrize("damage", [False, True], ids=["sound", "damaged"])
async def test_documents_without_stored_facts_are_read_at_the_start(tmp_path: Path, damage: bool) -> None:
    """An image with unreadable documents is not listed, since its user is unknown."""
    settings = ImageSettings(tmp_path / "state", tmp_path / "certs.d")
    layout = write_layout(tmp_path / "layout", IMAGE, "a:1")
    async with running(settings) as manager:
        await manager.import_layout(layout, None)
        before, index = manager.store.resolve("a:1"), manager.store.files.index
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("DROP TABLE facts")
        if damage:
            db.execute("UPDATE images SET config = x'00'")
    async with running(settings) as manager:
        assert [image.id for image in manager.store.images()] == ([] if damage else [IMAGE.id])
        await manager.import_layout(layout, None)
        assert manager.store.resolve("a:1") == before
        assert before.run == {"User": "1234", "Env": ["A=b"]}
