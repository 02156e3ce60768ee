"""The delegate: another runtime behind ours, for pods that do not run in zones.

See docs/adr/0023-delegation.md.
"""
