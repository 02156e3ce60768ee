"""The parts of SPDY/3.1 that Kubernetes uses, without I/O: decodes and encodes frames.

Source: "SPDY Protocol - Draft 3.1" (chromium.org).
"""
