"""Limits how much of the event loop callers and zones use: turns, calls under way, token buckets."""
