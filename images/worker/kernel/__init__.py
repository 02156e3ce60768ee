"""Reads hostile layers of kernel images."""
