"""Bounds for hostile bytes: limits, digests, and cancellation."""
