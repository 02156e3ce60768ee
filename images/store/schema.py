"""The tables of the index, and the migrations from earlier versions."""

from __future__ import annotations

VERSION = 3
_SCHEMA = """
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
"""
# Created in an index of any version: older versions ignore these tables, and lose nothing.
ALWAYS = """
CREATE TABLE IF NOT EXISTS damaged (
  chain_id TEXT PRIMARY KEY REFERENCES filesystems ON DELETE CASCADE
) STRICT;
CREATE TABLE IF NOT EXISTS losses (
  chain_id TEXT PRIMARY KEY REFERENCES filesystems ON DELETE CASCADE, counts TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS contents (
  chain_id TEXT PRIMARY KEY REFERENCES filesystems ON DELETE CASCADE, content_id TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS facts (
  image_id TEXT PRIMARY KEY REFERENCES images ON DELETE CASCADE, manifest_digest TEXT NOT NULL,
  facts BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS contents_of ON contents (content_id);
"""
_FROM_1 = "ALTER TABLE filesystems ADD COLUMN digest TEXT NOT NULL DEFAULT '';"
# Before version 3 an image was one filesystem: a stack of one.
_FROM_2 = """
ALTER TABLE filesystems ADD COLUMN below TEXT NOT NULL DEFAULT '';
ALTER TABLE accounts RENAME TO accounts_2;
CREATE TABLE accounts (
  chain_id TEXT NOT NULL REFERENCES filesystems ON DELETE CASCADE,
  path TEXT NOT NULL, data BLOB, PRIMARY KEY (chain_id, path)
) STRICT;
INSERT INTO accounts SELECT * FROM accounts_2;
DROP TABLE accounts_2;
"""

# By the version of the index; 0: new.
STEPS = {0: _SCHEMA, 1: _FROM_1 + _FROM_2, 2: _FROM_2}
