"""The tables of the index of images.  Migrations, if there are any, count from 0.1.0."""

from __future__ import annotations

VERSION = 3
"""Version of the tables (``user_version``)."""
SCHEMA = """
CREATE TABLE filesystems (
  chain_id TEXT PRIMARY KEY, type TEXT NOT NULL, bytes INTEGER NOT NULL, digest TEXT NOT NULL DEFAULT '',
  below TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE accounts (
  chain_id TEXT NOT NULL REFERENCES filesystems ON DELETE CASCADE,
  path TEXT NOT NULL, data BLOB, PRIMARY KEY (chain_id, path)
) STRICT;
CREATE TABLE images (
  id TEXT PRIMARY KEY, chain_id TEXT NOT NULL REFERENCES filesystems, manifest_digest TEXT NOT NULL,
  manifest BLOB NOT NULL, config BLOB NOT NULL, layers TEXT NOT NULL, pulled_at INTEGER NOT NULL,
  removed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE names (
  name TEXT PRIMARY KEY, image_id TEXT NOT NULL REFERENCES images ON DELETE CASCADE
) STRICT;
CREATE INDEX names_of ON names (image_id);
CREATE TABLE damaged (
  chain_id TEXT PRIMARY KEY REFERENCES filesystems ON DELETE CASCADE
) STRICT;
CREATE TABLE losses (
  chain_id TEXT PRIMARY KEY REFERENCES filesystems ON DELETE CASCADE, counts TEXT NOT NULL
) STRICT;
CREATE TABLE contents (
  chain_id TEXT PRIMARY KEY REFERENCES filesystems ON DELETE CASCADE, content_id TEXT NOT NULL
) STRICT;
CREATE INDEX contents_of ON contents (content_id);
"""
# Commit bef7f32f writes the same version without this table, and can read an index that has it.
FACTS = """
CREATE TABLE IF NOT EXISTS facts (
  image_id TEXT PRIMARY KEY REFERENCES images ON DELETE CASCADE, manifest_digest TEXT NOT NULL,
  facts BLOB NOT NULL
) STRICT;
"""
