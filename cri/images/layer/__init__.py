"""Layers: hostile bytes to entries."""
