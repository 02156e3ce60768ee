"""Entries to filesystem images."""
