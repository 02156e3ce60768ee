"""Exec and attach."""
