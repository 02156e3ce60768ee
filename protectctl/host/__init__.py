"""``protect host`` and its neighbours: what this host is, has, and lacks."""
