"""SPDY/3.1 as far as Kubernetes uses it, without I/O: decodes and encodes frames.

Source: "SPDY Protocol - Draft 3.1" (chromium.org).
"""
