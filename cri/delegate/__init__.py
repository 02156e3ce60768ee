"""The delegate: another runtime behind ours, which runs the pods that are not for zones.

See docs/adr/0023-delegation.md.
"""
