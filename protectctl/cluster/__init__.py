"""``protect generate``: what a cluster needs for nodes with zones."""
