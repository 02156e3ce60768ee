"""Kernels from images, which zones can boot."""
