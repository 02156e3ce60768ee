"""Kernels for zones, taken from images."""
