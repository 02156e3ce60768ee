"""Streams of both runtimes: lists, and events."""
