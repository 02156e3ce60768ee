"""Reads layers: turns hostile bytes into entries."""
