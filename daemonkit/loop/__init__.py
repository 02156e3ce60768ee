"""Bounds what callers and zones take of the event loop: turns, calls under way, token buckets."""
