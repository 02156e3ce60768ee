"""SPDY/3.1 as far as Kubernetes uses it: bytes in, frames out, and the other way round; no I/O.

Source: "SPDY Protocol - Draft 3.1" (chromium.org).
"""
