"""Exec, attach and port-forward: single-use URLs, and the server that they lead to."""
