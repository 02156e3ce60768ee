"""Exec, attach and port-forward: single-use URLs, and their server."""
