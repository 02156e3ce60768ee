"""Kernels that zones boot from, out of images."""
